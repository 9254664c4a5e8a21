"""Loops over lanes with loops in them become vectors: in LLVM's code, each is cut at its inner loops before LLVM vectorises.

LLVM vectorises innermost loops only. If a function of the user loops, the loop over lanes around it is not innermost, and its lanes are
computed one after the other. Here the loop over lanes moves inwards: `lane_regions.py` divides its body, `lane_cut.py` writes the pieces.
They compute the same operations in the same order for each lane. Kernels mark the loops with a call of `lane_loop`.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic

from warprun.kernels.entry import with_entry
from warprun.kernels.lane_code import Block, blocks_of, loops
from warprun.kernels.lane_cut import MARK, Counter, Metadata, Writer, incoming_from
from warprun.kernels.lane_regions import Regions, Stays
from warprun.kernels.simd import WIDTH

if TYPE_CHECKING:
    from llvmlite.ir import Value
    from numba.core.base import BaseContext as TargetContext
    from numba.core.codegen import CodeLibrary
    from numba.core.compiler_machinery import PassManager
    from numba.core.typing.context import BaseContext as TypingContext
    from numba.core.typing.templates import Signature

_NUMBER = re.compile(r"%(\d+)\b")
_NUMBERED_LABEL = re.compile(r"^(\d+):")


class _NoEnvironment:
    """Stands for Numba's code generator where it would write to machine code."""

    @staticmethod
    def set_env(name: str, environment: object) -> None:
        """Do nothing."""


class LinkedLibrary(JITCodeLibrary):
    """Code that runs within the machine code of a kernel only, and has none of its own."""

    is_tile = False
    """True: it is optimised here, and not again in the kernel. False: in the kernel only, where LLVM inlines it."""

    @property
    def codegen(self) -> _NoEnvironment:
        return _NoEnvironment()

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0: there is no machine code."""
        self._ensure_finalized()
        return 0

    def _optimize_final_module(self) -> None:
        if self.is_tile:
            _cut(self)
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class KernelLibrary(JITCodeLibrary):
    """Code of a kernel: its loops over lanes are cut before it is vectorised. Its tiles join it after that."""

    _linking_libraries: list[CodeLibrary]
    """The libraries whose functions it calls."""

    def finalize(self) -> None:
        self._tiles = [each for each in self._linking_libraries if isinstance(each, LinkedLibrary) and each.is_tile]
        self._linking_libraries = [each for each in self._linking_libraries if each not in self._tiles]
        super().finalize()

    def _optimize_final_module(self) -> None:
        _cut(self)
        super()._optimize_final_module()
        for tile in dict.fromkeys(self._tiles):
            self._final_module.link_in(tile._get_module_for_linking(), preserve=True)
        self._inline_tiles()

    def _inline_tiles(self) -> None:
        """Put the code of tiles in the place of their calls, each of which would pass hundreds of sizes and addresses through memory."""
        tiles = {each.name for tile in self._tiles for each in tile._final_module.functions if not each.is_declaration}
        for function in self._final_module.functions:
            if function.name in tiles and not function.is_declaration:
                function.add_function_attribute("alwaysinline")
                function.linkage = "internal"
        _, builder = _passes(self, unrolls=False)
        manager = llvm.create_new_module_pass_manager()
        manager.add_always_inliner_pass()
        manager.run(self._final_module, builder)


class Kernels(Compiler):
    """Numba's compiler for kernels of an engine: LLVM knows that the arrays among their arguments do not overlap (`noalias`).

    Otherwise LLVM does not vectorise loops over many arrays. The arrays of an engine are separate allocations. A kernel without a wrapper
    for Python gets an entry point for a `bound.Call`.
    """

    def define_pipelines(self) -> list[PassManager]:
        """Return the passes of the compiler."""
        managers = super().define_pipelines()
        return with_entry(managers) if self.state.flags.no_cpython_wrapper else managers

    def compile_extra(self, func: Callable[..., object]) -> object:
        """Compile a kernel, with its loops over lanes cut where they contain loops."""
        self.state.flags.noalias = True
        self.state.library = KernelLibrary(self.state.targetctx.codegen(), func.__qualname__)
        self.state.library.enable_object_caching()
        return super().compile_extra(func)


class Tiles(Compiler):
    """Numba's compiler for what kernels call for each tile, with the same promise."""

    def compile_extra(self, func: Callable[..., object]) -> object:
        """Compile a function, with its loops over lanes cut where they contain loops."""
        self.state.flags.noalias = True
        self.state.library = LinkedLibrary(self.state.targetctx.codegen(), func.__qualname__)
        self.state.library.is_tile = True
        return super().compile_extra(func)


class Inlined(Compiler):
    """Numba's compiler for functions that kernels inline."""

    def compile_extra(self, func: Callable[..., object]) -> object:
        """Translate a function; LLVM optimises it where it is inlined."""
        self.state.library = LinkedLibrary(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


def _cut(library: JITCodeLibrary) -> None:
    """Cut the marked loops over lanes."""
    module: llvm.ModuleRef = library._final_module
    if MARK not in str(module):
        return
    _simplify(library)
    _unroll(library)
    library._final_module = llvm.parse_assembly(with_cut_loops(module))
    library._final_module.name = module.name
    library._final_module.verify()


def _simplify(library: JITCodeLibrary) -> None:
    """Inline and simplify, without vectors."""
    manager, builder = _passes(library, unrolls=False)
    manager.run(library._final_module, builder)


def _unroll(library: JITCodeLibrary) -> None:
    """Unroll short loops of constant length, and bring the others into the form that `lane_regions.py` reads."""
    # The pipeline for modules would also unroll loops of unknown length, by a factor.
    _, builder = _passes(library, unrolls=True)
    manager = builder.getFunctionPassManager()
    manager.add_loop_simplify_pass()
    manager.add_lcssa_pass()
    for function in library._final_module.functions:
        if not function.is_declaration:
            manager.run(function, builder)


def _passes(library: JITCodeLibrary, unrolls: bool) -> tuple[llvm.ModulePassManager, llvm.PassBuilder]:
    options = llvm.create_pipeline_tuning_options()
    options.speed_level = 3
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = unrolls
    builder = llvm.create_pass_builder(library._codegen._tm, options)
    return builder.getModulePassManager(), builder


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


outcomes: collections.Counter[str] = collections.Counter()
"""Loops over lanes that this process has compiled: how many were cut, and how many stay for which reason."""


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
            kept = (each for writer in writers.values() for each in writer.allocas.items())
            made += [f"  {name} = alloca {kind}, align 64" for name, kind in kept]
        for each in block.instructions:
            if MARK not in each.text:
                made.append(f"  {incoming_from(each.text, last) if each.opcode == 'phi' else each.text}")
    return made


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


def _unmarked() -> None:
    """Mark nothing."""


@intrinsic
def _marked(typing: TypingContext) -> tuple[Signature, Callable[..., Value]]:
    def write(context: TargetContext, builder: ir.IRBuilder, signature: Signature, values: list[Value]) -> Value:
        mark = builder.module.declare_intrinsic("llvm.sideeffect", (), ir.FunctionType(ir.VoidType(), []))
        builder.call(mark, [])
        return context.get_dummy_value()

    return types.none(), write


lane_loop: Callable[[], None] = _unmarked if config.DISABLE_JIT else _marked
"""Mark the loop around it as one over lanes, no two of which touch the same memory if one of them writes."""
