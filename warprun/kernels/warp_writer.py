"""LLVM code with inline PTX for one lane of a warp: loads, stores, and its part in products of matrices by the whole warp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from llvmlite import ir
from numba import types
from numba.core import cgutils

if TYPE_CHECKING:
    from llvmlite.ir import Value
    from numba.core.base import BaseContext as TargetContext
    from numba.core.typing.templates import Signature
    from numba.types import Type

    Intrinsic: TypeAlias = tuple[Signature, Callable[[TargetContext, ir.IRBuilder, Signature, Sequence[Value]], Value]]
    Lane: TypeAlias = list[Value]
    """Numbers of one lane."""

REAL, WORD, LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_MMA = (
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
    "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
)


class Writer:
    """Writes what one lane of a warp does."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder

    def _address(self, array: Value, at: Value, more: int, times: tuple[Value, int] | None, kind: ir.Type) -> Value:
        """Return the address of array[at + n * m + more]; `times`: (n, m)."""
        if times:
            at = self.b.add(at, self.b.mul(times[0], LONG(times[1])))
        return self.b.bitcast(self.b.gep(self.b.gep(array, [at]), [LONG(more)]), kind.as_pointer())

    def load(
        self, array: Value, at: Value, more: int, times: tuple[Value, int] | None = None, count: int = 1, kind: ir.Type = REAL
    ) -> Lane:
        """Return `count` elements, which lie together at a multiple of their size."""
        vector = ir.VectorType(kind, count)
        found = self.b.load(self._address(array, at, more, times, vector if count > 1 else kind), align=4 * count)
        return [self.b.extract_element(found, WORD(n)) for n in range(count)] if count > 1 else [found]

    def store(self, array: Value, at: Value, more: int, values: Lane, times: tuple[Value, int] | None = None) -> None:
        """Write elements that lie together at a multiple of their size."""
        together, kind = values[0], REAL
        if len(values) > 1:
            kind = ir.VectorType(REAL, len(values))
            together = ir.Constant(kind, ir.Undefined)
            for n, value in enumerate(values):
                together = self.b.insert_element(together, value, WORD(n))
        self.b.store(together, self._address(array, at, more, times, kind), align=4 * len(values))

    def function(self, name: str, x: Value) -> Value:
        """Return what an instruction of PTX with one operand gives."""
        return self.b.call(ir.InlineAsm(ir.FunctionType(REAL, [REAL]), f"{name} $0, $1;", "=f,f"), [x])

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """Return x y + z, rounded once."""
        function = cgutils.get_or_insert_function(self.b.module, ir.FunctionType(REAL, [REAL] * 3), "llvm.fma.f32")
        return self.b.call(function, [x, y, z])

    def split(self, pairs: Sequence[Lane]) -> tuple[Lane, Lane]:
        """Return a word of each pair of numbers: both rounded to bfloat16, and what that leaves."""
        kind = ir.FunctionType(WORD, [REAL, REAL])
        rounded = ir.InlineAsm(kind, "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f")  # the first operand is the upper half
        words, rests = [], []
        for low, high in pairs:
            word = self.b.call(rounded, [low, high])
            lower, upper = self.b.shl(word, WORD(16)), self.b.and_(word, WORD(0xFFFF0000))
            left = [self.b.fsub(x, self.b.bitcast(part, REAL)) for x, part in ((low, lower), (high, upper))]
            words.append(word)
            rests.append(self.b.call(rounded, left))
        return words, rests

    def add_or_write(self, array: Value, at: Value, more: int, times: tuple[Value, int] | None, value: Value, fresh: Value) -> None:
        """Add to an element, or write it where `fresh`."""
        with self.b.if_else(fresh) as (new, old):
            with new:
                self.store(array, at, more, [value], times)
            with old:
                self.store(array, at, more, [self.b.fadd(value, self.load(array, at, more, times)[0])], times)

    def products(self, a: Sequence[Lane], b: Sequence[Lane], c: Lane) -> Lane:
        """Return C + A B; A has two parts, B one or two. The product of both rests would be lost in the rounding. Small ones come first."""
        for left, right in ((1, 0), (0, 1), (0, 0)):
            if right == len(b):
                continue
            given = [*a[left], *b[right], *c]
            kind = ir.FunctionType(ir.LiteralStructType([REAL] * 4), [value.type for value in given])
            # Convergent: LLVM must not move it into a branch that only some lanes take.
            found = self.b.call(ir.InlineAsm(kind, *_MMA), given, attrs=("convergent", "nounwind", "readnone"))
            c = [self.b.extract_value(found, n) for n in range(4)]
        return c


def written(result: Type, given: Sequence[Type], code: Callable[..., Lane], ignored: int = 0) -> Intrinsic:
    """Return what Numba asks of an intrinsic: `code(writer, numbers...)` gets tuples as their numbers, arrays as addresses and integers in
    64 bits, of all arguments but the first `ignored`."""
    kinds = [types.int64 if isinstance(kind, types.Integer) else kind for kind in given]

    def write(context: TargetContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[Value]) -> Value:
        numbers: list[Value] = []
        for kind, value in list(zip(signature.args, arguments, strict=True))[ignored:]:
            if isinstance(kind, types.UniTuple):
                numbers += [builder.extract_value(value, n) for n in range(kind.count)]
            elif isinstance(kind, types.Array):
                array = context.make_array(kind)(context, builder, value)
                numbers.append(builder.bitcast(array.data, REAL.as_pointer()))
            else:
                numbers.append(value)
        found = code(Writer(builder), *numbers)
        return cgutils.pack_array(builder, found) if isinstance(result, types.UniTuple) else context.get_dummy_value()

    return result(*kinds), write
