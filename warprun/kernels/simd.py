"""Matrix products on tiles of environments in explicit SIMD, written as LLVM intrinsics: faster than plain loops.

Why it is here. A policy of 64-64 units costs 9 kFLOP per step and an environment about 0.1, so these products decide the speed of a run.
LLVM vectorises plain loops over columns, but loads and stores the accumulators at every term. Here a block of ROWS x VECTORS accumulators
stays in registers over a sum of TERMS terms, so every load feeds several multiply-adds. AVX-512 has 32 registers of 16 floats: 4 x 4
accumulators, 4 inputs, 1 weight. NEON (32 of 4) gets the same code at its width, AVX2 (16 of 8) 4 x 2 accumulators: those that find no
register go to the stack and back at every term. The size of a block changes no result.

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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from warprun.kernels.vectors import INDEX, NARROW, REGISTERS, WIDTH, ZERO, Writer

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
ACCUMULATORS = REGISTERS // 2
"""Vectors of a block of accumulators; inputs and weights have the other registers."""
ROWS = 4
"""Rows of a block of accumulators; remaining rows are computed in blocks of fewer rows."""
VECTORS = max(ACCUMULATORS // ROWS, NARROW // WIDTH)
"""Vectors side by side in a block of accumulators."""

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
LONG = 512
"""Columns of all blocks from which on `outer` sums over lanes instead: so many multiply-adds for each sum that it costs less."""


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
    ahead: Array,
    fetched: Integer,
) -> Intrinsic:
    """Write y[:rows] = start[:rows] + w x[:terms]; all arrays are flat, rows of x and y have `columns` elements.

    Meanwhile `fetched` elements of `ahead`, which are needed later, come from memory into the second-level cache.
    """
    i = types.int64
    return types.void(w, i, i, start, x, y, i, i, i, ahead, i), _call(_multiply)


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
    k: Writer,
    w: Value,
    row_stride: Value,
    sum_stride: Value,
    start: Value,
    x: Value,
    y: Value,
    rows: Value,
    terms: Value,
    columns: Value,
    ahead: Value,
    fetched: Value,
) -> None:
    b = k.builder
    first = k.smaller(terms, TERMS)
    lines = b.udiv(b.add(b.udiv(fetched, INDEX(NARROW)), b.sub(rows, INDEX(1))), rows)  # for each row of y
    of_row = b.mul(lines, INDEX(NARROW))

    def fetch(row: Value, height: int) -> None:
        with cgutils.for_range_slice(b, b.mul(row, of_row), b.mul(k.add(row, height), of_row), INDEX(NARROW), intp=INDEX) as (at, _):
            k.fetch(ahead, at)

    _product(k, w, row_stride, sum_stride, x, columns, y, columns, rows, first, columns, start, fetch)
    for term, count in k.pieces(first, terms, TERMS):
        weights, inputs = b.gep(w, [b.mul(term, sum_stride)]), b.gep(x, [b.mul(term, columns)])
        k.call(_product, weights, row_stride, sum_stride, inputs, columns, y, columns, rows, count, columns)


def _product(
    k: Writer,
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
    fetch: Callable[[Value, int], None] = lambda row, height: None,
) -> None:
    """Write y[:rows] = start[:rows] + w x[:terms], or without `start` add w x[:terms] to y. Rows of x and y are `..._stride` apart.

    `fetch` is called for each block of rows: with its first row, and how many it has.
    """
    b = k.builder
    for column, breadth in k.blocks(columns, BREADTHS):
        vectors = range(0, breadth, WIDTH)
        # A multiply-add takes four cycles, so fewer vectors need more rows.
        most = min(2 * ROWS, ACCUMULATORS // len(vectors))
        for first, height in k.blocks(rows, (most, 2, 1) if start else (most, 1)):
            fetch(first, height)
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
    k: Writer, g: Value, dy: Value, dy_stride: Value, x: Value, x_stride: Value, rows: Value, terms: Value, blocks: Value, columns: Value
) -> None:
    b = k.builder
    # With few columns in the lanes, the sums over lanes take a third of the time. Many rows repay transposing x, so that lanes are terms.
    many = b.and_(b.icmp_unsigned(">=", rows, INDEX(MANY)), b.icmp_unsigned("<", b.mul(blocks, columns), INDEX(LONG)))
    whole = b.select(many, b.mul(b.udiv(terms, INDEX(MANY)), INDEX(MANY)), ZERO)
    strip = k.memory(STRIP * COLUMNS)
    for i, breadth in k.pieces(ZERO, whole, STRIP):
        with cgutils.for_range(b, blocks) as loop:
            for column, count in k.pieces(ZERO, columns, COLUMNS):
                inputs = b.gep(x, [b.add(b.add(b.mul(loop.index, x_stride), b.mul(i, columns)), column)])
                k.transpose(inputs, columns, strip, breadth, breadth, count)
                slopes = b.gep(dy, [b.add(b.mul(loop.index, dy_stride), column)])
                k.call(_product, slopes, columns, INDEX(1), strip, breadth, b.gep(g, [i]), terms, rows, count, breadth)
    for j, height in k.blocks(rows, (ROWS, 2, 1)):
        for i, breadth in k.blocks(terms, (ACCUMULATORS // ROWS, 1), whole):
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


def _add_row_sums(k: Writer, g: Value, x: Value, stride: Value, rows: Value, blocks: Value, columns: Value) -> None:
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
        Writer(builder).call(write, *given)
        return context.get_dummy_value()

    return generate
