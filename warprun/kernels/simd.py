"""Matrix products on tiles of environments in explicit SIMD, written as LLVM intrinsics: faster than plain loops.

Why it is here. A policy of 64-64 units costs 9 kFLOP per step and an environment about 0.1, so these products decide the speed of a run.
LLVM vectorises plain loops over columns, but loads and stores the accumulators at every term. Here a block of ROWS x VECTORS accumulators
stays in registers over a sum of TERMS terms, so every load feeds several multiply-adds. AVX-512 has 32 registers of 16 floats: 4 x 4
accumulators, 4 inputs, 1 weight. AVX2 (16 registers of 8) and NEON (32 of 4) get the same code at their width.

Layout. Activations are [feature, column], one column for each actor and environment of a block: COLUMNS in a block, or NARROW if there
are few (any multiple of NARROW works). Weights are [out, in] as in torch, so that each weight is a scalar, broadcast over a vector.

    multiply     y[j, c] = start[j] + sum_k w[j * row_stride + k * sum_stride] x[k, c]
                 forward: start = bias, strides (in, 1); backward to the input: start = 0, strides (1, in)
    add_product  y[j, c] += sum_k w[j * row_stride + k * sum_stride] x[k, c], rows of x and y apart by more than their columns
    outer        g[j, k] += sum_n sum_c dy[n, j, c] x[n, k, c]
    add_row_sums g[j] += sum_n sum_c x[n, j, c]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llvmlite.ir import Value
    from numba.core.base import BaseContext as TargetContext
    from numba.core.typing.context import BaseContext as TypingContext
    from numba.core.typing.templates import Signature
    from numba.types import Array, Integer

    CodeGenerator: TypeAlias = Callable[[TargetContext, ir.IRBuilder, Signature, Sequence[Value]], Value]
    """Writes the LLVM code of one call."""
    Intrinsic: TypeAlias = tuple[Signature, CodeGenerator]

COLUMNS = 64
"""Columns of a block of activations: a tile of environments, four AVX-512 vectors."""
NARROW = 16
"""What the columns of a block are a multiple of: blocks are no wider than their rows need."""


def _width() -> int:
    # NUMBA_CPU_FEATURES, if set, names the processor that Numba compiles for.
    asked = config.CPU_FEATURES
    features = llvm.get_host_cpu_features().flatten() if asked is None else asked
    if "+avx512f" in features:
        return 16
    return 8 if "+avx2" in features else 4


WIDTH = _width()
"""float32 elements of one vector register."""
VECTORS = 2 if WIDTH == 8 else 4
"""Vectors side by side in a block of accumulators."""
ROWS = 4
"""Rows of a block of accumulators; remaining rows are computed in blocks of fewer rows."""

BREADTHS = tuple(breadth for breadth in (64, 32, 16) if breadth <= WIDTH * VECTORS)
"""Columns of a block of accumulators; each after the first is for columns that do not fill the one before."""
TERMS = 128
"""Terms that are summed for all rows before the next ones are read: with COLUMNS columns 32 kB, which stay in the first-level cache."""
STRIP = 64
"""Terms that `outer` transposes together."""
LINE = 64
"""Bytes of a cache line."""
MANY = 32
"""Rows from which on `outer` transposes; it does so for multiples of as many terms."""

_FLOAT, _INDEX = ir.FloatType(), ir.IntType(64)
_ZERO = _INDEX(0)
_VECTOR = ir.VectorType(_FLOAT, WIDTH)


def aligned_zeros(*shape: int) -> NDArray[np.float32]:
    """Return float32 zeros that begin at a cache line. Vectors that reach into a second line take twice as long to load or store."""
    size = math.prod(shape)
    memory = np.zeros(size + LINE // 4, np.float32)
    begin = -memory.ctypes.data % LINE // 4
    return memory[begin : begin + size].reshape(shape)


@intrinsic
def multiply(
    typing: TypingContext,
    w: Array,
    row_stride: Integer,
    sum_stride: Integer,
    start: Array,
    x: Array,
    y: Array,
    rows: Integer,
    terms: Integer,
    columns: Integer,
) -> Intrinsic:
    """Write y[:rows] = start[:rows] + w x[:terms]; all arrays are flat, rows of x and y have `columns` elements."""
    i = types.int64
    return types.void(w, i, i, start, x, y, i, i, i), _call(_multiply)


@intrinsic
def add_product(
    typing: TypingContext,
    w: Array,
    row_stride: Integer,
    sum_stride: Integer,
    x: Array,
    x_stride: Integer,
    y: Array,
    y_stride: Integer,
    rows: Integer,
    terms: Integer,
    columns: Integer,
) -> Intrinsic:
    """Add w x[:terms] to y[:rows]; all arrays are flat, the rows of x and y that begin `..._stride` apart have `columns` elements."""
    i = types.int64
    return types.void(w, i, i, x, i, y, i, i, i, i), _call(_product)


@intrinsic
def outer(
    typing: TypingContext,
    g: Array,
    dy: Array,
    dy_stride: Integer,
    x: Array,
    x_stride: Integer,
    rows: Integer,
    terms: Integer,
    blocks: Integer,
    columns: Integer,
) -> Intrinsic:
    """Add to g [rows, terms] the products of dy and x summed over the columns of `blocks` blocks, whose starts are `..._stride` apart."""
    i = types.int64
    return types.void(g, dy, i, x, i, i, i, i, i), _call(_outer)


@intrinsic
def add_row_sums(typing: TypingContext, g: Array, x: Array, stride: Integer, rows: Integer, blocks: Integer, columns: Integer) -> Intrinsic:
    """Add to g [rows] the sums over the columns of x in `blocks` blocks, whose starts are `stride` apart."""
    i = types.int64
    return types.void(g, x, i, i, i, i), _call(_add_row_sums)


def _multiply(
    k: _Writer, w: Value, row_stride: Value, sum_stride: Value, start: Value, x: Value, y: Value, rows: Value, terms: Value, columns: Value
) -> None:
    b = k.builder
    first = k.smaller(terms, TERMS)
    _product(k, w, row_stride, sum_stride, x, columns, y, columns, rows, first, columns, start)
    for term, count in k.pieces(first, terms, TERMS):
        weights, inputs = b.gep(w, [b.mul(term, sum_stride)]), b.gep(x, [b.mul(term, columns)])
        k.call(_product, weights, row_stride, sum_stride, inputs, columns, y, columns, rows, count, columns)


def _product(
    k: _Writer,
    w: Value,
    row_stride: Value,
    sum_stride: Value,
    x: Value,
    x_stride: Value,
    y: Value,
    y_stride: Value,
    rows: Value,
    terms: Value,
    columns: Value,
    start: Value | None = None,
) -> None:
    """Write y[:rows] = start[:rows] + w x[:terms], or without `start` add w x[:terms] to y. Rows of x and y are `..._stride` apart."""
    b = k.builder
    for column, breadth in k.blocks(columns, BREADTHS):
        vectors = range(0, breadth, WIDTH)
        # A multiply-add takes four cycles, so fewer vectors need more rows.
        most = ROWS * min(2, VECTORS // len(vectors))
        for first, height in k.blocks(rows, (most, 2, 1) if start else (most, 1)):
            row = [k.add(first, r) for r in range(height)]
            at = [b.add(b.mul(j, y_stride), column) for j in row]
            if start:
                begin = [[k.splat(k.number(start, j))] * len(vectors) for j in row]
            else:
                begin = [[k.load(y, k.add(place, v)) for v in vectors] for place in at]
            sums = [[k.variable(value) for value in values] for values in begin]
            weight_row = [b.gep(w, [b.mul(j, row_stride)]) for j in row]
            with cgutils.for_range(b, terms) as loop:
                place = b.add(b.mul(loop.index, x_stride), column)
                inputs = [k.load(x, k.add(place, v)) for v in vectors]
                offset = b.mul(loop.index, sum_stride)
                for r in range(height):
                    weight = k.splat(k.number(weight_row[r], offset))
                    for total, value in zip(sums[r], inputs, strict=True):
                        k.accumulate(total, weight, value)
            for r in range(height):
                for total, v in zip(sums[r], vectors, strict=True):
                    k.store(b.load(total), y, k.add(at[r], v))


def _outer(
    k: _Writer, g: Value, dy: Value, dy_stride: Value, x: Value, x_stride: Value, rows: Value, terms: Value, blocks: Value, columns: Value
) -> None:
    b = k.builder
    # With columns in the lanes, the sums over lanes take a third of the time. Many rows repay transposing x, so that lanes are terms.
    many = b.icmp_unsigned(">=", rows, _INDEX(MANY))
    whole = b.select(many, b.mul(b.udiv(terms, _INDEX(MANY)), _INDEX(MANY)), _ZERO)
    strip = k.memory(STRIP * COLUMNS)
    for i, breadth in k.pieces(_ZERO, whole, STRIP):
        with cgutils.for_range(b, blocks) as loop:
            for column, count in k.pieces(_ZERO, columns, COLUMNS):
                inputs = b.gep(x, [b.add(b.add(b.mul(loop.index, x_stride), b.mul(i, columns)), column)])
                k.transpose(inputs, columns, strip, breadth, breadth, count)
                slopes = b.gep(dy, [b.add(b.mul(loop.index, dy_stride), column)])
                k.call(_product, slopes, columns, _INDEX(1), strip, breadth, b.gep(g, [i]), terms, rows, count, breadth)
    for j, height in k.blocks(rows, (ROWS, 2, 1)):
        for i, breadth in k.blocks(terms, (ROWS, 1), whole):
            sums = [[k.variable(k.zero) for _ in range(breadth)] for _ in range(height)]
            with cgutils.for_range(b, blocks) as loop:
                dy_at = b.add(b.mul(loop.index, dy_stride), b.mul(j, columns))
                x_at = b.add(b.mul(loop.index, x_stride), b.mul(i, columns))
                for column in k.vectors(columns):
                    inputs = [k.load(x, k.at(x_at, c, columns, column)) for c in range(breadth)]
                    for r in range(height):
                        slope = k.load(dy, k.at(dy_at, r, columns, column))
                        for c in range(breadth):
                            k.accumulate(sums[r][c], slope, inputs[c])
            totals = k.sums([b.load(sums[r][c]) for r in range(height) for c in range(breadth)])
            for r in range(height):
                k.add_to(b.gep(g, [b.add(b.mul(k.add(j, r), terms), i)]), totals, r * breadth, breadth)


def _add_row_sums(k: _Writer, g: Value, x: Value, stride: Value, rows: Value, blocks: Value, columns: Value) -> None:
    b = k.builder
    for j, height in k.blocks(rows, (ROWS, 2, 1)):
        sums = [k.variable(k.zero) for _ in range(height)]
        with cgutils.for_range(b, blocks) as loop:
            at = b.add(b.mul(loop.index, stride), b.mul(j, columns))
            for column in k.vectors(columns):
                for r in range(height):
                    b.store(b.fadd(b.load(sums[r]), k.load(x, k.at(at, r, columns, column))), sums[r])
        k.add_to(b.gep(g, [j]), k.sums([b.load(total) for total in sums]), 0, height)


def _call(write: Callable[..., None]) -> CodeGenerator:
    """Return a generator of calls to the function that `write` writes."""

    def generate(context: TargetContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[Value]) -> Value:
        given = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, values, strict=True)
        ]
        _Writer(builder).call(write, *given)
        return context.get_dummy_value()

    return generate


class _Writer:
    """Writes the instructions that the products share, through an IRBuilder."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder
        self.zero = ir.Constant(_VECTOR, [0.0] * WIDTH)

    def call(self, write: Callable[..., None], *given: Value) -> None:
        """Call the function that `write` writes. Each kernel has it once: inlined, every call would be compiled."""
        module, name = self.builder.module, f"warprun{write.__name__}"
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(ir.VoidType(), [value.type for value in given]), name)
            function.linkage = "linkonce_odr"
            function.attributes.add("noinline")
            function.attributes.add("optsize")  # unrolled loops would take longer to compile, and not less to run
            body = ir.IRBuilder(function.append_basic_block())
            write(_Writer(body), *function.args)
            body.ret_void()
        self.builder.call(function, given)

    def blocks(self, end: Value, heights: tuple[int, ...], begin: Value = _ZERO) -> Iterator[tuple[Value, int]]:
        """Yield (first row, height) inside a loop over blocks of rows for each of `heights` in turn; each takes the rows that are left."""
        b, last = self.builder, end
        for height in heights:
            end = b.add(begin, b.mul(b.udiv(b.sub(last, begin), _INDEX(height)), _INDEX(height)))
            with cgutils.for_range_slice(b, begin, end, _INDEX(height), intp=_INDEX) as (index, _):
                yield index, height
            begin = end

    def pieces(self, begin: Value, end: Value, size: int) -> Iterator[tuple[Value, Value]]:
        """Yield (first item, number of items) inside a loop over pieces of `size` items, of which the last one may be smaller."""
        with cgutils.for_range_slice(self.builder, begin, end, _INDEX(size), intp=_INDEX) as (first, _):
            yield first, self.smaller(self.builder.sub(end, first), size)

    def smaller(self, count: Value, limit: int) -> Value:
        """Return the smaller one of two numbers."""
        return self.builder.select(self.builder.icmp_unsigned("<", count, _INDEX(limit)), count, _INDEX(limit))

    def vectors(self, columns: Value) -> Iterator[Value]:
        """Yield the first column of each vector inside a loop that advances NARROW columns at a time."""
        with cgutils.for_range_slice(self.builder, _ZERO, columns, _INDEX(NARROW), intp=_INDEX) as (column, _):
            for v in range(0, NARROW, WIDTH):
                yield self.add(column, v)

    def transpose(self, x: Value, x_stride: Value, y: Value, y_stride: Value, rows: Value, columns: Value) -> None:
        """Write the first rows and columns of x, whole vectors of both, to the columns and rows of y."""
        b, half = self.builder, WIDTH // 2
        # Rows and columns change places bit by bit of their numbers: each time rows that are half a square apart are interleaved.
        halves = [_lanes(lane + row for lane in range(begin, begin + half) for row in (0, WIDTH)) for begin in (0, half)]
        for row, _ in self.blocks(rows, (WIDTH,)):
            for column, _ in self.blocks(columns, (WIDTH,)):
                square = [self.load(x, self.at(column, r, x_stride, b.mul(row, x_stride))) for r in range(WIDTH)]
                for _ in range(WIDTH.bit_length() - 1):
                    pairs = zip(square[:half], square[half:], strict=True)
                    square = [b.shuffle_vector(upper, lower, lanes) for upper, lower in pairs for lanes in halves]
                for c, vector in enumerate(square):
                    self.store(vector, y, self.at(row, c, y_stride, b.mul(column, y_stride)))

    def splat(self, number: Value) -> Value:
        """Return a vector with `number` in every lane."""
        b, undefined = self.builder, ir.Constant(_VECTOR, ir.Undefined)
        one = b.insert_element(undefined, number, ir.IntType(32)(0))
        return b.shuffle_vector(one, undefined, _lanes([0] * WIDTH))

    def accumulate(self, variable: Value, a: Value, x: Value) -> None:
        """Add a x to a variable of vector type by a fused multiply-add."""
        b = self.builder
        fma = cgutils.get_or_insert_function(b.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{WIDTH}f32")
        b.store(b.call(fma, [a, x, b.load(variable)]), variable)

    def sums(self, vectors: list[Value]) -> list[Value]:
        """Return the sum over the lanes of each vector, packed: the sum of vector n is lane n % WIDTH of packed vector n // WIDTH."""
        # Pairwise sums of neighbouring lanes, two vectors at a time, until each vector is reduced to one lane.
        even, odd = (_lanes(range(first, 2 * WIDTH, 2)) for first in (0, 1))
        b, lanes = self.builder, WIDTH
        while lanes > 1:
            pairs = zip(vectors[::2], vectors[1::2] + vectors[-1:], strict=False)
            vectors = [b.fadd(b.shuffle_vector(x, y, even), b.shuffle_vector(x, y, odd)) for x, y in pairs]
            lanes //= 2
        return vectors

    def add_to(self, place: Value, packed: list[Value], first: int, count: int) -> None:
        """Add `count` numbers, from number `first` of a result of `sums` on, to the floats at `place`."""
        b, vector = self.builder, packed[first // WIDTH]
        some = b.shuffle_vector(vector, vector, _lanes(range(first % WIDTH, first % WIDTH + count)))
        pointer = b.bitcast(place, ir.PointerType(ir.VectorType(_FLOAT, count)))
        before = b.load(pointer)
        before.align = 4
        b.store(b.fadd(before, some), pointer).align = 4

    def variable(self, value: Value) -> Value:
        """Return the address of a new variable with the initial value `value`; LLVM keeps it in a register."""
        made = cgutils.alloca_once(self.builder, _VECTOR)
        self.builder.store(value, made)
        return made

    def memory(self, count: int) -> Value:
        """Return the address of `count` floats that last as long as the call; whole cache lines."""
        made = cgutils.alloca_once(self.builder, _FLOAT, _INDEX(count))
        made.align = 64
        return made

    def number(self, pointer: Value, index: Value) -> Value:
        """Load the float at `index`."""
        return self.builder.load(self.builder.gep(pointer, [index]))

    def load(self, pointer: Value, index: Value) -> Value:
        """Load the vector that begins at `index`."""
        loaded = self.builder.load(self._vector(pointer, index))
        loaded.align = 4  # NumPy does not align arrays to vectors
        return loaded

    def store(self, vector: Value, pointer: Value, index: Value) -> None:
        """Store a vector from `index` on."""
        self.builder.store(vector, self._vector(pointer, index)).align = 4

    def at(self, begin: Value, row: int, columns: Value, column: Value) -> Value:
        """Return the flat index begin + row * columns + column."""
        return self.builder.add(self.builder.add(begin, self.builder.mul(_INDEX(row), columns)), column)

    def add(self, index: Value, n: int) -> Value:
        """Return index + n."""
        return self.builder.add(index, _INDEX(n)) if n else index

    def _vector(self, pointer: Value, index: Value) -> Value:
        return self.builder.bitcast(self.builder.gep(pointer, [index]), ir.PointerType(_VECTOR))


def _lanes(indices: Iterable[int]) -> ir.Constant:
    numbers = list(indices)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(numbers)), numbers)
