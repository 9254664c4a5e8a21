"""Matrix products on tiles of environments in explicit SIMD, through LLVM intrinsics: what plain loops do not reach.

Why it is here. A policy of 64-64 units costs 9 kFLOP a step and the environment 0.1, so these products are the speed of a run.
LLVM vectorises plain loops over columns, but loads and stores the sums at every term. Here a block of ROWS x VECTORS sums stays in
registers over the whole length, so every load feeds several multiply-adds. AVX-512 has 32 registers of 16 floats: 4 x 4 sums,
4 inputs, 1 weight. AVX2 (16 registers of 8) and NEON (32 of 4) get the same code at their width.

Layout. Activations are [feature, column], a column for every actor and environment of a block: COLUMNS side by side, or NARROW where
there are few (any multiple of NARROW works). Weights are [out, in] as torch keeps them, so that a weight is one number, spread over a
vector.

    multiply     y[j, c] = start[j] + sum_k w[j * row_stride + k * sum_stride] x[k, c]
                 forward: start = bias, strides (in, 1); backward to the input: start = 0, strides (1, in)
    outer        g[j, k] += sum_n sum_c dy[n, j, c] x[n, k, c]
    add_row_sums g[j] += sum_n sum_c x[n, j, c]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

COLUMNS = 64
"""Columns of a block of activations: a tile of environments, four vectors of AVX-512."""
NARROW = 32
"""Columns of a block where more would stay empty."""


def _width() -> int:
    # Where a person has told Numba to compile for another processor, the vectors are of that one.
    asked = config.CPU_FEATURES  # type: ignore[attr-defined]
    features = llvm.get_host_cpu_features().flatten() if asked is None else asked
    if "+avx512f" in features:
        return 16
    return 8 if "+avx2" in features else 4


WIDTH = _width()
"""float32 in one register."""
VECTORS = 2 if WIDTH == 8 else 4
"""Vectors side by side in a block of sums."""
ROWS = 4
"""Rows of a block of sums; what is left over is done in lower blocks."""

BREADTHS = (WIDTH * VECTORS, NARROW) if WIDTH * VECTORS > NARROW else (WIDTH * VECTORS,)
"""Columns of a block of sums; the second for what the first leaves over."""

_FLOAT, _INDEX = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, WIDTH)


@intrinsic
def multiply(typing: Any, w: Any, row_stride: Any, sum_stride: Any, start: Any, x: Any, y: Any, rows: Any, terms: Any, columns: Any) -> Any:
    """Write y[:rows] = start[:rows] + w x[:terms]; w, start, x and y are flat arrays, x and y of rows of `columns`."""
    i = types.int64
    return types.void(w, i, i, start, x, y, i, i, i), _call(_multiply)


@intrinsic
def outer(typing: Any, g: Any, dy: Any, dy_stride: Any, x: Any, x_stride: Any, rows: Any, terms: Any, blocks: Any, columns: Any) -> Any:
    """Add to g [rows, terms] the products of dy and x summed over the columns of `blocks` blocks, which begin `..._stride` apart."""
    i = types.int64
    return types.void(g, dy, i, x, i, i, i, i, i), _call(_outer)


@intrinsic
def add_row_sums(typing: Any, g: Any, x: Any, stride: Any, rows: Any, blocks: Any, columns: Any) -> Any:
    """Add to g [rows] the sums over the columns of x in `blocks` blocks, which begin `stride` apart."""
    i = types.int64
    return types.void(g, x, i, i, i, i), _call(_add_row_sums)


def _multiply(
    k: _Writer, w: Any, row_stride: Any, sum_stride: Any, start: Any, x: Any, y: Any, rows: Any, terms: Any, columns: Any
) -> None:
    b = k.builder
    for first, height in k.blocks(rows, (ROWS, 2, 1)):
        row = [k.add(first, r) for r in range(height)]
        begin = [k.splat(k.number(start, j)) for j in row]
        for column, breadth in k.blocks(columns, BREADTHS):
            vectors = range(0, breadth, WIDTH)
            sums = [[k.variable(value) for _ in vectors] for value in begin]
            weight_row = [b.gep(w, [b.mul(j, row_stride)]) for j in row]
            with cgutils.for_range(b, terms) as loop:
                at = b.add(b.mul(loop.index, columns), column)
                inputs = [k.load(x, k.add(at, v)) for v in vectors]
                offset = b.mul(loop.index, sum_stride)
                for r in range(height):
                    weight = k.splat(k.number(weight_row[r], offset))
                    for total, value in zip(sums[r], inputs, strict=True):
                        k.accumulate(total, weight, value)
            for r in range(height):
                at = b.add(b.mul(row[r], columns), column)
                for total, v in zip(sums[r], vectors, strict=True):
                    k.store(b.load(total), y, k.add(at, v))


def _outer(k: _Writer, g: Any, dy: Any, dy_stride: Any, x: Any, x_stride: Any, rows: Any, terms: Any, blocks: Any, columns: Any) -> None:
    b = k.builder
    for j, height in k.blocks(rows, (ROWS, 2, 1)):
        for i, breadth in k.blocks(terms, (ROWS, 1)):
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


def _add_row_sums(k: _Writer, g: Any, x: Any, stride: Any, rows: Any, blocks: Any, columns: Any) -> None:
    b = k.builder
    for j, height in k.blocks(rows, (ROWS, 2, 1)):
        sums = [k.variable(k.zero) for _ in range(height)]
        with cgutils.for_range(b, blocks) as loop:
            at = b.add(b.mul(loop.index, stride), b.mul(j, columns))
            for column in k.vectors(columns):
                for r in range(height):
                    b.store(b.fadd(b.load(sums[r]), k.load(x, k.at(at, r, columns, column))), sums[r])
        k.add_to(b.gep(g, [j]), k.sums([b.load(total) for total in sums]), 0, height)


def _call(write: Callable[..., None]) -> Callable[..., Any]:
    """Return what compiles a call of the function that `write` writes: once in a kernel, for inlined it would be compiled at each use."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        given = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, values, strict=True)
        ]
        module, name = builder.module, f"warprun{write.__name__}"
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(ir.VoidType(), [value.type for value in given]), name)
            function.linkage = "linkonce_odr"
            function.attributes.add("noinline")
            body = ir.IRBuilder(function.append_basic_block())
            write(_Writer(body), *function.args)
            body.ret_void()
        builder.call(function, given)
        return context.get_dummy_value()

    return generate


class _Writer:
    """Writes the instructions that the products have in common."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.zero = ir.Constant(_VECTOR, [0.0] * WIDTH)

    def blocks(self, count: Any, heights: tuple[int, ...]) -> Iterator[tuple[Any, int]]:
        """Yield (first row, height) inside loops over blocks of rows: for each of `heights` in turn, what the one before has left."""
        b, begin = self.builder, _INDEX(0)
        for height in heights:
            end = b.mul(b.udiv(count, _INDEX(height)), _INDEX(height))
            with cgutils.for_range_slice(b, begin, end, _INDEX(height), intp=_INDEX) as (index, _):
                yield index, height
            begin = end

    def vectors(self, columns: Any) -> Iterator[Any]:
        """Yield the first column of every vector inside a loop over NARROW columns at a time."""
        with cgutils.for_range_slice(self.builder, _INDEX(0), columns, _INDEX(NARROW), intp=_INDEX) as (column, _):
            for v in range(0, NARROW, WIDTH):
                yield self.add(column, v)

    def splat(self, number: Any) -> Any:
        b, undefined = self.builder, ir.Constant(_VECTOR, ir.Undefined)
        one = b.insert_element(undefined, number, ir.IntType(32)(0))
        return b.shuffle_vector(one, undefined, _lanes([0] * WIDTH))

    def accumulate(self, variable: Any, a: Any, x: Any) -> None:
        b = self.builder
        fma = cgutils.get_or_insert_function(b.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{WIDTH}f32")
        b.store(b.call(fma, [a, x, b.load(variable)]), variable)

    def sums(self, vectors: list[Any]) -> list[Any]:
        """Return the sum over the lanes of each vector, packed into vectors: number n is lane n % WIDTH of the one at n // WIDTH."""
        # Sums of neighbours, of two vectors at once, until a lane holds what a vector held.
        even, odd = (_lanes(range(first, 2 * WIDTH, 2)) for first in (0, 1))
        b, lanes = self.builder, WIDTH
        while lanes > 1:
            pairs = zip(vectors[::2], vectors[1::2] + vectors[-1:], strict=False)
            vectors = [b.fadd(b.shuffle_vector(x, y, even), b.shuffle_vector(x, y, odd)) for x, y in pairs]
            lanes //= 2
        return vectors

    def add_to(self, place: Any, packed: list[Any], first: int, count: int) -> None:
        """Add the numbers from `first` on, as `sums` packs them, to `count` numbers at `place`."""
        b, vector = self.builder, packed[first // WIDTH]
        some = b.shuffle_vector(vector, vector, _lanes(range(first % WIDTH, first % WIDTH + count)))
        pointer = b.bitcast(place, ir.PointerType(ir.VectorType(_FLOAT, count)))
        before = b.load(pointer)
        before.align = 4
        b.store(b.fadd(before, some), pointer).align = 4

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

    def at(self, begin: Any, row: int, columns: Any, column: Any) -> Any:
        return self.builder.add(self.builder.add(begin, self.builder.mul(_INDEX(row), columns)), column)

    def add(self, index: Any, n: int) -> Any:
        return self.builder.add(index, _INDEX(n)) if n else index

    def _vector(self, pointer: Any, index: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(pointer, [index]), ir.PointerType(_VECTOR))


def _lanes(indices: Iterable[int]) -> Any:
    numbers = list(indices)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(numbers)), numbers)
