"""Products of matrices on the tensor cores of a GPU, as one warp computes them: intrinsics that write LLVM code with inline PTX.

Why it is here. A multiply-add of float32 takes an instruction of a warp for 32 products; an `mma` takes one for 2,048. Tensor cores take
numbers of 16 bits. So each float32 becomes two of bfloat16, the rounded number and what the rounding left (`split`), and three products of
them stand for one, with an error of about 2^-16 of it. Sums in tensor cores are cut, not rounded: over the inputs of a layer
and the columns of a tile that is little, a sum over all rows of a batch must not stay there. What is infinite becomes NaN.

An `mma` adds A [16, 16] times B [16, 8] to C [16, 8]. Lane 4 g + t of a warp has, in 32-bit registers (NVIDIA, PTX ISA, "Matrix fragments
for mma.m16n8k16"), in each the number of the lower column or row in its lower half:

    A    [g, 2t + {0, 1}], [g + 8, 2t + {0, 1}], [g, 2t + 8 + {0, 1}], [g + 8, 2t + 8 + {0, 1}]
    B    [2t + {0, 1}, g], [2t + 8 + {0, 1}, g]
    C    [g, 2t], [g, 2t + 1], [g + 8, 2t], [g + 8, 2t + 1]

A sum has no order, so terms may be numbered anew if A and B agree: lane t takes the terms `term_of` instead, for which no two lanes of a
warp read the same bank of shared memory.

Accumulators of a warp are a tuple of float32: for each 16 rows, for each 8 columns, the four of C. Every function here is for all threads
of a warp together. `array` arguments are float32; an index is that of the lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from warprun.kernels.warp_writer import LONG, REAL, WORD, Writer, written

if TYPE_CHECKING:
    from llvmlite.ir import Value
    from numba.core.typing.context import BaseContext as TypingContext
    from numba.types import Array, Integer, Type, UniTuple

    from warprun.kernels.warp_writer import Intrinsic, Lane

Index = TypeVar("Index", int, NDArray[np.int64])

ROWS, TERMS, COLUMNS = 16, 16, 16
"""Of A and of its terms; the columns that a warp computes together are those of two B."""
WORDS = 32 * 4
"""Words of one part of A: four registers of 32 lanes."""

LOG2_E_TWICE = 2.8853900817779268
_ONES = 0x3F803F80
"""A word of two 1.0 in bfloat16."""


def term_of(register: Index, half: Index, t: Index) -> Index:
    """Return which of TERMS lane t has in a half of a register of B; A has it in registers 2 * `register` and 2 * `register` + 1."""
    return 8 * register + 4 * half + t


@intrinsic
def begin(typing: TypingContext, like: UniTuple, array: Array, at: Integer) -> Intrinsic:
    """Return accumulators, as many as `like` has, that begin with array[at + row] in each row; `at` of lane 4 g + t is that of row g."""

    def code(k: Writer, array: Value, at: Value) -> Lane:
        starts = [k.load(array, at, ROWS * m + 8 * half)[0] for m in range(like.count // 8) for half in range(2)]
        return [starts[2 * m + half] for m in range(like.count // 8) for _ in range(2) for half in (0, 0, 1, 1)]

    return written(like, (like, array, at), code, ignored=1)


@intrinsic
def products(
    typing: TypingContext, y: UniTuple, weights: Array, w: Integer, apart: Integer, block: Array, x: Integer, stride: Integer
) -> Intrinsic:
    """Add to y the products of TERMS columns of weights and as many rows of a block.

    `weights` has words of A (`split`), those of the next 16 rows `apart` words behind; `w` of a lane is its number of words from the first
    on. `x` of lane 4 g + t is the index of row t, column g.
    """

    def code(k: Writer, *given: Value) -> Lane:
        *accumulators, weights, w, apart, block, x, stride = given
        return _products(k, accumulators, weights, w, apart, lambda term, column: k.load(block, x, column, (stride, term))[0])

    return written(y, (y, weights, w, apart, block, x, stride), code)


@intrinsic
def last_products(
    typing: TypingContext,
    y: UniTuple,
    weights: Array,
    w: Integer,
    apart: Integer,
    block: Array,
    x: Integer,
    stride: Integer,
    first: Integer,
    left: Integer,
) -> Intrinsic:
    """Do the same for fewer terms: `left` of a lane is the number of rows from its own on, and `first` the index of row 0, column g."""

    def code(k: Writer, *given: Value) -> Lane:
        *accumulators, weights, w, apart, block, x, stride, first, left = given

        def load(term: int, column: int) -> Value:
            there = k.b.icmp_signed("<", LONG(term), left)
            at = k.b.select(there, k.b.add(x, k.b.mul(stride, LONG(term))), first)
            return k.b.select(there, k.load(block, at, column)[0], REAL(0.0))

        return _products(k, accumulators, weights, w, apart, load)

    return written(y, (y, weights, w, apart, block, x, stride, first, left), code)


def _products(k: Writer, y: Lane, weights: Value, w: Value, apart: Value, load: Callable[[int, int], Value]) -> Lane:
    right = []
    for column in (0, 8):
        found = [[load(term_of(register, half, 0), column) for half in range(2)] for register in range(2)]
        right.append(k.split(found))
    for m in range(len(y) // 8):
        left = [k.load(weights, w, part * WORDS, (apart, m), 4, WORD) for part in range(2)]
        for n in range(2):
            at = 8 * m + 4 * n
            y[at : at + 4] = k.products(left, right[n], y[at : at + 4])
    return y


@intrinsic
def place_rows(typing: TypingContext, like: UniTuple, first: Integer, end: Integer, stride: Integer, at: Integer) -> Intrinsic:
    """Return the indices of rows of a block, as many as `like` has, 8 apart from `first` on, at column `at`; of those behind the end that
    of the last one."""

    def code(k: Writer, first: Value, end: Value, stride: Value, at: Value) -> Lane:
        last, found = k.b.sub(end, LONG(1)), []
        for n in range(like.count):
            row = k.b.add(first, LONG(8 * n))
            found.append(k.b.add(k.b.mul(k.b.select(k.b.icmp_signed("<", row, last), row, last), stride), at))
        return found

    return written(like, (like, first, end, stride, at), code, ignored=1)


@intrinsic
def outer_products(typing: TypingContext, y: UniTuple, block: Array, rows: UniTuple, columns: UniTuple, at: Integer) -> Intrinsic:
    """Add to y the products of rows of a block and of others, summed over TERMS columns from `at` on, and the sums of the former.

    `rows` and `columns` (those of y) of lane 4 g + t are the indices of every eighth row from its row g on, at column 2 t. y has for each
    two of `rows` four numbers for each of `columns`, then four of which the first of each two is the sum in the lanes with t = 0.
    """
    n_columns = columns.count

    def code(k: Writer, *given: Value) -> Lane:
        y, (block, *places, at) = list(given[:y_count]), given[y_count:]

        def pairs(place: Value) -> list[Lane]:
            return [k.load(block, k.b.add(place, at), 8 * register, None, 2) for register in range(2)]

        left_at, right_at = places[: rows.count], places[rows.count :]
        right = [k.split(pairs(place)) for place in right_at]
        for m in range(rows.count // 2):
            (a, c), (b, d) = pairs(left_at[2 * m]), pairs(left_at[2 * m + 1])
            left = k.split([a, b, c, d])
            first = 4 * m * (n_columns + 1)
            for n in range(n_columns):
                place = first + 4 * n
                y[place : place + 4] = k.products(left, right[n], y[place : place + 4])
            place = first + 4 * n_columns
            y[place : place + 4] = k.products(left, ([WORD(_ONES)] * 2,), y[place : place + 4])
        return y

    y_count = y.count
    return written(y, (y, block, rows, columns, at), code)


@intrinsic
def add_outer(
    typing: TypingContext,
    y: UniTuple,
    like: UniTuple,
    slopes: Array,
    at: Integer,
    apart: Integer,
    rows: Integer,
    columns: Integer,
    fresh: Type,
) -> Intrinsic:
    """Add y of `outer_products`, but for the sums, to an array, or write it there where `fresh`.

    `like` has as many numbers as `columns` of `outer_products`. `at` of lane 4 g + t is the index of row g, column 2 t, rows are `apart`,
    and the lane has so many `rows` and `columns` from there on.
    """

    def code(k: Writer, *given: Value) -> Lane:
        *values, slopes, at, apart, rows, columns, fresh = given
        for n, row, column in _outer_places(y.count, like.count):
            for odd in range(2):
                there = k.b.and_(k.b.icmp_signed("<", LONG(row), rows), k.b.icmp_signed("<", LONG(column + odd), columns))
                with k.b.if_then(there):
                    k.add_or_write(slopes, at, column + odd, (apart, row), values[n + odd], fresh)
        return []

    return written(types.void, (y, like, slopes, at, apart, rows, columns, fresh), _without(code, y.count, like.count))


@intrinsic
def add_whole_outer(typing: TypingContext, y: UniTuple, like: UniTuple, slopes: Array, at: Integer, apart: Integer) -> Intrinsic:
    """Do the same for all rows and columns, with an index and rows that are even."""

    def code(k: Writer, *given: Value) -> Lane:
        *values, slopes, at, apart = given
        places = _outer_places(y.count, like.count)
        old = [k.load(slopes, at, column, (apart, row), 2) for _, row, column in places]
        for (n, row, column), pair in zip(places, old, strict=True):
            k.store(slopes, at, column, [k.b.fadd(values[n + m], pair[m]) for m in range(2)], (apart, row))
        return []

    return written(types.void, (y, like, slopes, at, apart), _without(code, y.count, like.count))


@intrinsic
def add_outer_sums(typing: TypingContext, y: UniTuple, like: UniTuple, slopes: Array, at: Integer, rows: Integer, fresh: Type) -> Intrinsic:
    """Add the sums of `outer_products` to an array, see `add_outer`, in the lanes that have them."""

    def code(k: Writer, *given: Value) -> Lane:
        *values, slopes, at, rows, fresh = given
        width = 4 * (like.count + 1)
        for n in range(len(values) // width):
            for half in range(2):
                row = ROWS * n + 8 * half
                with k.b.if_then(k.b.icmp_signed("<", LONG(row), rows)):
                    k.add_or_write(slopes, at, row, None, values[width * (n + 1) - 4 + 2 * half], fresh)
        return []

    return written(types.void, (y, like, slopes, at, rows, fresh), _without(code, y.count, like.count))


def _outer_places(count: int, n_columns: int) -> list[tuple[int, int, int]]:
    """Return of each pair of numbers of `outer_products` its place among them, and row and column from the lane's own on."""
    width = 4 * (n_columns + 1)
    tall = range(count // width)
    return [(width * m + 4 * n + 2 * half, ROWS * m + 8 * half, 8 * n) for m in tall for half in range(2) for n in range(n_columns)]


def _without(code: Callable[..., Lane], first: int, count: int) -> Callable[..., Lane]:
    """Return `code` for numbers of which `count` after the `first` ones mean nothing."""
    return lambda k, *given: code(k, *given[:first], *given[first + count :])


@intrinsic
def load(typing: TypingContext, like: UniTuple, block: Array, at: Integer, stride: Integer, left: Integer) -> Intrinsic:
    """Return the numbers of a block in the places of accumulators, as many as `like` has, see `store`; of rows that do not exist 0."""

    def code(k: Writer, block: Value, at: Value, stride: Value, left: Value) -> Lane:
        found = []
        for row, column in _places(like.count):
            there = k.b.icmp_signed("<", LONG(row), left)
            index = k.b.select(there, k.b.add(at, k.b.mul(stride, LONG(row))), at)
            found.append([k.b.select(there, x, REAL(0.0)) for x in k.load(block, index, column, None, 2)])
        return [x for pair in found for x in pair]

    return written(like, (like, block, at, stride, left), code, ignored=1)


@intrinsic
def store(typing: TypingContext, y: UniTuple, block: Array, at: Integer, stride: Integer, left: Integer) -> Intrinsic:
    """Write accumulators to a block. `at` of lane 4 g + t is the index of row g, column 2 t; `left` are its rows from there on."""

    def code(k: Writer, *given: Value) -> Lane:
        *y, block, at, stride, left = given
        for n, (row, column) in enumerate(_places(len(y))):
            with k.b.if_then(k.b.icmp_signed("<", LONG(row), left)):
                k.store(block, at, column, y[2 * n : 2 * n + 2], (stride, row))
        return []

    return written(types.void, (y, block, at, stride, left), code)


def _places(count: int) -> list[tuple[int, int]]:
    """Return row and column, from a lane's own on, of each pair of accumulators."""
    return [(ROWS * m + 8 * half, 8 * n) for m in range(count // 8) for n in range(2) for half in range(2)]


@intrinsic
def tanh(typing: TypingContext, y: UniTuple) -> Intrinsic:
    """Return 1 - 2 / (1 + e^2y) of each number: the error is 4e-7, absolute and not relative, of which a sum over units needs no more."""

    def code(k: Writer, *y: Value) -> Lane:
        powers = [k.function("ex2.approx.ftz.f32", k.b.fmul(x, REAL(LOG2_E_TWICE))) for x in y]
        inverses = [k.function("rcp.approx.ftz.f32", k.b.fadd(power, REAL(1.0))) for power in powers]
        return [k.fma(REAL(-2.0), inverse, REAL(1.0)) for inverse in inverses]

    return written(y, (y,), code)


@intrinsic
def relu(typing: TypingContext, y: UniTuple) -> Intrinsic:
    """Return max(y, 0) of each number; NaN stays NaN."""

    def code(k: Writer, *y: Value) -> Lane:
        return [k.b.select(k.b.fcmp_ordered("<", x, REAL(0.0)), REAL(0.0), x) for x in y]

    return written(y, (y,), code)


@intrinsic
def through_tanh(typing: TypingContext, slopes: UniTuple, y: UniTuple) -> Intrinsic:
    """Return the slopes of what tanh has turned into y."""

    def code(k: Writer, *given: Value) -> Lane:
        half = len(given) // 2
        return [k.b.fmul(s, k.fma(k.b.fsub(REAL(-0.0), x), x, REAL(1.0))) for s, x in zip(given[:half], given[half:], strict=True)]

    return written(slopes, (slopes, y), code)


@intrinsic
def through_relu(typing: TypingContext, slopes: UniTuple, y: UniTuple) -> Intrinsic:
    """Return the slopes of what relu has turned into y."""

    def code(k: Writer, *given: Value) -> Lane:
        half = len(given) // 2
        pairs = zip(given[:half], given[half:], strict=True)
        return [k.b.select(k.b.fcmp_ordered(">", x, REAL(0.0)), s, REAL(0.0)) for s, x in pairs]

    return written(slopes, (slopes, y), code)


@intrinsic
def split_word(typing: TypingContext, low: Type, high: Type, rest: Type) -> Intrinsic:
    """Return two numbers as a word of bfloat16, with the bits of a float32: rounded, or if `rest` what the rounding leaves."""

    def code(k: Writer, low: Value, high: Value, rest: Value) -> Value:
        (words,) = zip(*k.split([[low, high]]), strict=True)
        return k.b.bitcast(k.b.select(rest, words[1], words[0]), REAL)

    real = types.float32
    return real(real, real, types.boolean), lambda context, builder, signature, given: code(Writer(builder), *given)
