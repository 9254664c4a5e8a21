"""Matrix products on tiles of environments in explicit SIMD, through LLVM intrinsics: what plain loops do not reach.

Why it is here. A policy of 64-64 units costs 9 kFLOP a step and the environment 0.1, so these products are the speed of a run.
LLVM vectorises plain loops over columns, but loads and stores the sums at every term. Here a block of ROWS x VECTORS sums stays in
registers over the whole length, so every load feeds several multiply-adds. AVX-512 has 32 registers of 16 floats: 4 x 4 sums,
4 inputs, 1 weight. AVX2 (16 registers of 8) and NEON (32 of 4) get the same code at their width.

Layout. Activations are [feature, column] with COLUMNS columns side by side, one for every actor and environment of a block; weights
are [out, in] as torch keeps them, so that a weight is one number, spread over a vector.

    multiply     y[j, c] = start[j] + sum_k w[j * row_stride + k * sum_stride] x[k, c]
                 forward: start = bias, strides (in, 1); backward to the input: start = 0, strides (1, in)
    outer        g[j, k] += sum_n sum_c dy[n, j, c] x[n, k, c]
    add_row_sums g[j] += sum_c x[j, c]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

COLUMNS = 64
"""Columns of every block of activations: a tile of environments, four vectors of AVX-512."""


def _native_width() -> int:
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    return 8 if features.get("avx2") else 4


WIDTH = _native_width()
"""float32 in one register."""
VECTORS = 2 if WIDTH == 8 else 4
"""Vectors side by side in a block of sums."""
ROWS = 4
"""Rows of a block of sums."""

_FLOAT, _INDEX = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, WIDTH)


@intrinsic
def multiply(typing: Any, w: Any, row_stride: Any, sum_stride: Any, start: Any, x: Any, y: Any, rows: Any, terms: Any) -> Any:
    """Write y[:rows] = start[:rows] + w x[:terms]; w, start, x and y are flat arrays, x and y of rows of COLUMNS."""
    i = types.int64
    signature = types.void(w, i, i, start, x, y, i, i)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        k = _Writer(builder)
        w, start, x, y = (_data(context, builder, signature.args[n], values[n]) for n in (0, 3, 4, 5))
        row_stride, sum_stride, rows, terms = values[1], values[2], values[6], values[7]
        for first, height in k.row_blocks(rows):
            for column in range(0, COLUMNS, WIDTH * VECTORS):
                row = [k.add(first, r) for r in range(height)]
                begin = [k.splat(k.number(start, j)) for j in row]
                sums = [[k.variable(value) for _ in range(VECTORS)] for value in begin]
                weight_row = [builder.gep(w, [builder.mul(j, row_stride)]) for j in row]
                with cgutils.for_range(builder, terms) as loop:
                    at = k.add(builder.mul(loop.index, _INDEX(COLUMNS)), column)
                    inputs = [k.load(x, k.add(at, v * WIDTH)) for v in range(VECTORS)]
                    offset = builder.mul(loop.index, sum_stride)
                    for r in range(height):
                        weight = k.splat(k.number(weight_row[r], offset))
                        for v in range(VECTORS):
                            k.accumulate(sums[r][v], weight, inputs[v])
                for r in range(height):
                    at = k.add(builder.mul(row[r], _INDEX(COLUMNS)), column)
                    for v in range(VECTORS):
                        k.store(builder.load(sums[r][v]), y, k.add(at, v * WIDTH))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def outer(typing: Any, g: Any, dy: Any, dy_stride: Any, x: Any, x_stride: Any, rows: Any, terms: Any, blocks: Any) -> Any:
    """Add to g [rows, terms] the products of dy and x summed over the columns of `blocks` blocks, which begin `..._stride` apart."""
    i = types.int64
    signature = types.void(g, dy, i, x, i, i, i, i)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        k = _Writer(builder)
        g, dy, x = (_data(context, builder, signature.args[n], values[n]) for n in (0, 1, 3))
        dy_stride, x_stride, rows, terms, blocks = values[2], values[4], values[5], values[6], values[7]
        for j, height in k.row_blocks(rows):
            for i_, breadth in k.row_blocks(terms):
                sums = [[k.variable(k.zero) for _ in range(breadth)] for _ in range(height)]
                with cgutils.for_range(builder, blocks) as loop:
                    dy_at = builder.add(builder.mul(loop.index, dy_stride), builder.mul(j, _INDEX(COLUMNS)))
                    x_at = builder.add(builder.mul(loop.index, x_stride), builder.mul(i_, _INDEX(COLUMNS)))
                    for column in range(0, COLUMNS, WIDTH):
                        inputs = [k.load(x, k.add(x_at, c * COLUMNS + column)) for c in range(breadth)]
                        for r in range(height):
                            slope = k.load(dy, k.add(dy_at, r * COLUMNS + column))
                            for c in range(breadth):
                                k.accumulate(sums[r][c], slope, inputs[c])
                for r in range(height):
                    for c in range(breadth):
                        place = builder.gep(g, [builder.add(builder.mul(k.add(j, r), terms), k.add(i_, c))])
                        builder.store(builder.fadd(builder.load(place), k.sum(builder.load(sums[r][c]))), place)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def add_row_sums(typing: Any, x: Any, g: Any, rows: Any) -> Any:
    """Add to g [rows] the sums over the columns of x [rows, COLUMNS]."""
    signature = types.void(x, g, types.int64)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        k = _Writer(builder)
        x, g = (_data(context, builder, signature.args[n], values[n]) for n in (0, 1))
        with cgutils.for_range(builder, values[2]) as loop:
            at = builder.mul(loop.index, _INDEX(COLUMNS))
            total = k.load(x, at)
            for column in range(WIDTH, COLUMNS, WIDTH):
                total = builder.fadd(total, k.load(x, k.add(at, column)))
            place = builder.gep(g, [loop.index])
            builder.store(builder.fadd(builder.load(place), k.sum(total)), place)
        return context.get_dummy_value()

    return signature, generate


class _Writer:
    """Writes the instructions that the products have in common."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.zero = ir.Constant(_VECTOR, [0.0] * WIDTH)

    def row_blocks(self, count: Any) -> Iterator[tuple[Any, int]]:
        """Yield inside a loop over blocks of ROWS rows, then inside one over the rows that are left, with the first row's index."""
        b = self.builder
        whole = b.mul(b.udiv(count, _INDEX(ROWS)), _INDEX(ROWS))
        for begin, end, height in ((_INDEX(0), whole, ROWS), (whole, count, 1)):
            with cgutils.for_range_slice(b, begin, end, _INDEX(height), intp=_INDEX) as (index, _):
                yield index, height

    def splat(self, number: Any) -> Any:
        b, undefined = self.builder, ir.Constant(_VECTOR, ir.Undefined)
        one = b.insert_element(undefined, number, ir.IntType(32)(0))
        return b.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH))

    def accumulate(self, variable: Any, a: Any, x: Any) -> None:
        b = self.builder
        fma = cgutils.get_or_insert_function(b.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{WIDTH}f32")
        b.store(b.call(fma, [a, x, b.load(variable)]), variable)

    def sum(self, vector: Any) -> Any:
        b = self.builder
        add = cgutils.get_or_insert_function(b.module, ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR]), f"llvm.vector.reduce.fadd.v{WIDTH}f32")
        return b.call(add, [_FLOAT(0.0), vector], fastmath=("reassoc",))

    def variable(self, value: Any) -> Any:
        """Return a variable set to `value` here; LLVM keeps it in a register."""
        made = cgutils.alloca_once(self.builder, _VECTOR)
        self.builder.store(value, made)
        return made

    def number(self, pointer: Any, index: Any) -> Any:
        return self.builder.load(self.builder.gep(pointer, [index]))

    def load(self, pointer: Any, index: Any) -> Any:
        loaded = self.builder.load(self._vector(pointer, index))
        loaded.align = 4  # arrays begin where numpy put them
        return loaded

    def store(self, vector: Any, pointer: Any, index: Any) -> None:
        self.builder.store(vector, self._vector(pointer, index)).align = 4

    def add(self, index: Any, n: int) -> Any:
        return self.builder.add(index, _INDEX(n)) if n else index

    def _vector(self, pointer: Any, index: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(pointer, [index]), ir.PointerType(_VECTOR))


def _data(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.make_array(kind)(context, builder, value).data
