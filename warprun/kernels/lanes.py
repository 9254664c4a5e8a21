"""Loops over lanes become vectors, also where functions of the user loop: their code is changed before LLVM vectorises it.

The problem. A tile holds LANES environments, its lanes. A kernel computes a tile in a loop over them, which it marks
with `lane_loop()`. LLVM vectorises innermost loops only. If a function of the user loops, the loop over lanes around it
is not innermost, and its lanes are computed one after the other.

The change. The loop over lanes moves inwards. It is *cut* at the loops within its body, and each piece (*region*)
becomes an innermost loop over lanes of its own:

    for lane in range(count):            a[lane] = f(lane) for all lanes
        a = f(lane)                      while a lane is in the loop:
        while g(a):             ->           there[lane] = there[lane] and g(a[lane]) for all lanes
            a = h(a)                         if there[lane]: a[lane] = h(a[lane]) for all lanes
        x[lane] = a                      x[lane] = a[lane] for all lanes

Each lane computes the same operations in the same order as before. Where all lanes agree (the loop runs `range(8)` for
each of them), there is no `there`: one scalar branch decides for all.

The steps, each a file:

1. `compilers.py` lets LLVM inline, simplify and unroll short loops, and calls `with_cut_loops` on the text of a module,
   here.
2. `lane_regions.py` reads a loop as blocks, divides them into regions, and finds what is the same for all lanes
   (*uniform*) and which regions only some lanes run (*masked*). A loop that cannot be cut raises `Stays` and stays as
   it is.
3. `lane_values.py` finds the values that one region makes and another one reads, and gives them places on the stack.
4. `lane_cut.py` writes the regions as loops over lanes.

Beside them here is what kernels call for this: `lane_loop`, and reads of memory that LLVM would not see as vectors.
`outcomes` says what became of the loops of this process, and tests compare random programs with the same programs
uncut.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from warprun.kernels.lane_cut import Counter, Metadata, Writer
from warprun.kernels.lane_regions import NAME, Block, Regions, Stays, blocks_of, loops
from warprun.kernels.lane_values import MARK
from warprun.kernels.vectors import WIDTH

if TYPE_CHECKING:
    from llvmlite.ir import Value
    from numba.core.base import BaseContext as TargetContext
    from numba.core.typing.context import BaseContext as TypingContext
    from numba.core.typing.templates import Signature
    from numba.types import Array, Integer, UniTuple

    from warprun.kernels.simd import Intrinsic

outcomes: collections.Counter[str] = collections.Counter()
"""Loops over lanes that this process has compiled: how many were cut, and how many stay for which reason."""

_NUMBER = re.compile(r"%(\d+)\b")
_NUMBERED_LABEL = re.compile(r"^(\d+):")


def with_cut_loops(module: llvm.ModuleRef) -> str:
    """Return the text of a module in which the marked loops are cut; a loop that cannot be cut stays as it is, without its mark."""
    lines = str(module).splitlines()
    numbers = [int(found[1]) for found in (re.match(r"!(\d+) = ", line) for line in lines) if found]
    metadata = Metadata(max(numbers, default=-1) + 1)
    functions = {each.name: each for each in module.functions}
    made: list[str] = []
    n = 0
    while n < len(lines):
        name = re.search(r'@(?:"([^"]*)"|([-\w.$]+))\(', lines[n]) if lines[n].startswith("define") else None
        end = lines.index("}", n) if name else n
        code = lines[n : end + 1]
        if name and any(MARK in line for line in code):
            # A parser wants values without a name in the order of their numbers.
            code = [_NUMBER.sub(r"%u\1", _NUMBERED_LABEL.sub(r"u\1:", line)) for line in code]
            blocks = blocks_of(code[1:-1], functions[name[1] or name[2]])
            code = [_full_width(code[0]), *_cut_function(blocks, metadata), "}"]
        made += code
        n = end + 1
    return "\n".join([*made, *metadata.lines]) + "\n"


def _full_width(head: str) -> str:
    """Return the first line of a function with the attribute that lets LLVM use vectors as wide as those of `simd.py`."""
    # For many processors with AVX-512 LLVM prefers vectors of half the width, which slows down their first models less.
    return re.sub(r"(\)(?: (?:local_)?unnamed_addr)?)([^()]*\{)$", rf'\1 "prefer-vector-width"="{32 * WIDTH}"\2', head)


def _cut_function(blocks: dict[str, Block], metadata: Metadata) -> list[str]:
    """Return the code of a function with its marked loops cut."""
    start = next(iter(blocks))
    found = loops({label: block.next for label, block in blocks.items()}, start)
    marked = [label for label, block in blocks.items() if any(MARK in each.text for each in block.instructions)]
    around = {min((h for h in found if label in found[h]), key=lambda h: len(found[h]), default="") for label in marked}
    writers: dict[str, Writer] = {}
    for n, header in enumerate(sorted(around - {""})):
        try:
            writers[header] = _writer(blocks, found[header], header, f"lanes{n}", metadata)
            outcomes["cut"] += 1
        except Stays as reason:
            outcomes[str(reason)] += 1
    written = {header: writer.write() for header, writer in writers.items()}
    gone = {label for header in writers for label in found[header]}
    last = {writer.counter.latch: writer.last for writer in writers.values()}
    made: list[str] = []
    for label, block in blocks.items():
        made += written.get(label, [])
        if label in gone:
            continue
        made.append(f"{label[1:]}:")
        if label == start:
            kept = (each for writer in writers.values() for each in writer.values.allocas.items())
            made += [f"  {name} = alloca {kind}, align 64" for name, kind in kept]
        for each in block.instructions:
            if MARK not in each.text:
                made.append(f"  {_coming_from(each.text, last) if each.opcode == 'phi' else each.text}")
    return made


def _coming_from(phi: str, labels: dict[str, str]) -> str:
    """Return the text of a phi with other labels of the blocks before it."""
    return re.sub(rf", ({NAME.pattern}) \]", lambda found: f", {labels.get(found[1], found[1])} ]", phi)


def _writer(blocks: dict[str, Block], labels: set[str], header: str, prefix: str, metadata: Metadata) -> Writer:
    """Return the writer of one loop. Raises Stays."""
    members = {label: block for label, block in blocks.items() if label in labels}
    latches = [label for label in members if header in blocks[label].next]
    if len(latches) != 1 or any(set(block.next) - labels for label, block in members.items() if label != latches[0]):
        raise Stays("it can end in the middle")
    counter = Counter(members, header, latches[0])
    defined = {each.name for block in members.values() for each in block.instructions if each.name}
    outside = (each for label, block in blocks.items() if label not in labels for each in block.instructions)
    if any(name in defined for each in outside for name in each.operands):
        raise Stays("a value is carried from one lane to the next")
    regions = Regions(members, header, latches[0], counter.lane)
    if not regions.loops:
        raise Stays("it contains no loop")
    return Writer(regions, counter, prefix, metadata)


# What kernels call ------------------------------------------------------------------------------------------------------

AT_ONCE = 64
"""Flags that `set_flags` reads."""


@intrinsic
def _marked(typing: TypingContext) -> Intrinsic:
    def write(context: TargetContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[Value]) -> Value:
        mark = builder.module.declare_intrinsic("llvm.sideeffect", (), ir.FunctionType(ir.VoidType(), []))
        builder.call(mark, [])
        return context.get_dummy_value()

    return types.none(), write


@intrinsic
def _of_tile(typing: TypingContext, array: Array, tile: Integer, shape: UniTuple) -> Intrinsic | None:
    if array.layout != "C":
        return None

    def generate(context: TargetContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[Value]) -> Value:
        given = make_array(array)(context, builder, values[0])
        sizes = cgutils.unpack_tuple(builder, values[2], len(shape))
        strides = [given.itemsize.type(context.get_abi_sizeof(given.data.type.pointee))]
        for size in reversed(sizes):
            strides.insert(0, builder.mul(strides[0], size))
        data = builder.bitcast(given.data, ir.IntType(8).as_pointer())
        data = builder.bitcast(builder.gep(data, [builder.mul(values[1], strides[0])]), given.data.type)
        view = make_array(signature.return_type)(context, builder)
        populate_array(view, data, sizes, strides[1:], strides[-1], given.meminfo, parent=given.parent)
        return impl_ret_borrowed(context, builder, signature.return_type, view._getvalue())

    return array.copy(ndim=array.ndim - 1)(array, types.int64, shape), generate


@intrinsic
def _set_flags(typing: TypingContext, flags: Array, first: Integer) -> Intrinsic:
    def generate(context: TargetContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[Value]) -> Value:
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        vector = ir.VectorType(ir.IntType(8), AT_ONCE)
        place = builder.bitcast(builder.gep(data, [values[1]]), vector.as_pointer())
        is_set = builder.icmp_unsigned("!=", builder.load(place, align=1), ir.Constant(vector, [0] * AT_ONCE))
        return builder.bitcast(is_set, ir.IntType(64))

    return types.uint64(flags, types.int64), generate


@intrinsic
def _lowest_bit(typing: TypingContext, bits: Integer) -> Intrinsic:
    def generate(context: TargetContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[Value]) -> Value:
        return builder.cttz(values[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


def _unmarked() -> None:
    """Mark nothing: without compilation."""


def _part_of_tile(array: np.ndarray, tile: int, shape: tuple[int, ...]) -> np.ndarray:
    found: np.ndarray = array[tile]
    return found


def _set_flags_in_python(flags: np.ndarray, first: int) -> np.uint64:
    return np.uint64(sum(int(flag) << n for n, flag in enumerate(flags[first : first + AT_ONCE])))


def _lowest_bit_in_python(bits: np.uint64) -> int:
    return (int(bits) & -int(bits)).bit_length() - 1


lane_loop: Callable[[], None] = _unmarked if config.DISABLE_JIT else _marked
"""Mark the loop around it as one over lanes, no two of which touch the same memory if one of them writes."""
of_tile: Callable[[np.ndarray, int, tuple[int, ...]], np.ndarray] = _part_of_tile if config.DISABLE_JIT else _of_tile
"""(array, tile, shape) -> array[tile], whose shape must be `shape`, a tuple of constants; `array` must be contiguous.

LLVM knows sizes and strides of the view: addresses in it are constants, and neighbouring lanes are seen to be neighbours.
"""
# A few instructions in place of 64 branches, which LLVM does not find by itself: it turns such a loop over flags into scalar code.
set_flags = _set_flags_in_python if config.DISABLE_JIT else _set_flags
"""(flags, first) -> flags[first : first + AT_ONCE], which must exist, as the bits of a uint64, the first flag in the lowest one."""
lowest_bit = _lowest_bit_in_python if config.DISABLE_JIT else _lowest_bit
"""(bits) -> the place of the lowest bit of a uint64 that is set."""
