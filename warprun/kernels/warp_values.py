"""Numbers in the places of accumulators of `kernels.warp`: from and to any array, and through functions of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from warprun.kernels.warp import LOG2_E_TWICE, WORDS
from warprun.kernels.warp_writer import LONG, REAL, WORD, Writer, written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llvmlite import ir
    from llvmlite.ir import Value
    from numba.core.base import BaseContext as TargetContext
    from numba.core.typing.context import BaseContext as TypingContext
    from numba.core.typing.templates import Signature
    from numba.types import Array, Dispatcher, Integer, UniTuple

    from warprun.kernels.warp_writer import Intrinsic, Lane


@intrinsic
def gather(
    typing: TypingContext, like: UniTuple, array: Array, at: Integer, apart: Integer, down: Integer, across: Integer, left: Integer
) -> Intrinsic:
    """Return numbers of an array in the places of accumulators, as many as `like` has; of columns that do not exist 0.

    `at` of lane 4 g + t is the index of row g, column 2 t. Rows are `down`, columns `across`, the next ROWS rows `apart`; `left` are the
    columns from the lane's own on.
    """

    def code(k: Writer, array: Value, *given: Value) -> Lane:
        *strides, left = given
        found: dict[tuple[int, int, int], Value] = {}
        for places in _by_column(like.count):
            before = k.b.block
            with k.b.if_then(k.b.icmp_signed("<", LONG(places[0][2]), left)):
                loaded = [k.load(array, _strewn_at(k, strides, place), 0)[0] for place in places]
                within = k.b.block
            for place, value in zip(places, loaded, strict=True):
                found[place] = k.b.phi(REAL)
                found[place].add_incoming(value, within)
                found[place].add_incoming(REAL(0.0), before)
        return [found[place] for place in _strewn(like.count)]

    return written(like, (like, array, at, apart, down, across, left), code, ignored=1)


@intrinsic
def scatter(typing: TypingContext, y: UniTuple, array: Array, at: Integer, apart: Integer, across: Integer, left: Integer) -> Intrinsic:
    """Write accumulators to an array, see `gather`; the 16 rows of each tile lie together."""

    def code(k: Writer, *given: Value) -> Lane:
        *values, array, at, apart, across, left = given
        by_place = dict(zip(_strewn(y.count), values, strict=True))
        for places in _by_column(y.count):
            with k.b.if_then(k.b.icmp_signed("<", LONG(places[0][2]), left)):
                for place in places:
                    k.store(array, _strewn_at(k, (at, apart, LONG(1), across), place), 0, [by_place[place]])
        return []

    return written(types.void, (y, array, at, apart, across, left), code)


def _strewn(count: int) -> list[tuple[int, int, int]]:
    """Return of each accumulator which ROWS rows it belongs to, and row and column there, from a lane's own on."""
    return [(m, 8 * half, 8 * n + odd) for m in range(count // 8) for n in range(2) for half in range(2) for odd in range(2)]


def _by_column(count: int) -> list[list[tuple[int, int, int]]]:
    """Return the places of accumulators, those of a column together: all of them exist, or none."""
    return [[place for place in _strewn(count) if place[2] == column] for column in (0, 1, 8, 9)]


def _strewn_at(k: Writer, given: Sequence[Value], place: tuple[int, int, int]) -> Value:
    """Return the index of a place from a lane's own row and column on."""
    at, *strides = given
    for stride, count in zip(strides, place, strict=True):
        at = k.b.add(at, k.b.mul(stride, LONG(count)))
    return at


@intrinsic
def store_words(typing: TypingContext, y: UniTuple, block: Array, at: Integer, rests: Integer) -> Intrinsic:
    """Write ROWS rows of numbers to a block as words of two, rows g and g + 8 in both parts: the lower rows of `products_of_words`.

    `at` of lane 4 g + t is the index of row g, column 2 t; what the rounding leaves is `rests` elements behind.
    """

    def code(k: Writer, *given: Value) -> Lane:
        *y, block, at, rests = given
        pairs = [[y[4 * n + odd], y[4 * n + 2 + odd]] for n in range(2) for odd in range(2)]
        for part, words in enumerate(k.split(pairs)):
            for n in range(2):
                values = [k.b.bitcast(word, REAL) for word in words[2 * n : 2 * n + 2]]
                k.store(block, at, 8 * n, values, (rests, part))
        return []

    return written(types.void, (y, block, at, rests), code)


@intrinsic
def products_of_words(
    typing: TypingContext,
    y: UniTuple,
    weights: Array,
    w: Integer,
    apart: Integer,
    block: Array,
    x: Integer,
    stride: Integer,
    rests: Integer,
    behind: Integer,
) -> Intrinsic:
    """Do what `warp.products` does for rows that are words already (`store_words`), so that no warp splits what another one has split.

    `x` of lane 4 g + t is the index of row t of words, column g. The weights must have their terms in this order: `term_of_words`. Each 16
    rows of y have words of their own, those of the next 16 `behind` elements behind; 0: they share them.
    """

    def code(k: Writer, *given: Value) -> Lane:
        *y, weights, w, apart, block, x, stride, rests, behind = given
        found: Lane = []
        for m in range(len(y) // 8):
            own = k.b.add(x, k.b.mul(behind, LONG(m)))
            left = [k.load(weights, w, part * WORDS, (apart, m), 4, WORD) for part in range(2)]
            for n in range(2):
                right = []
                for part in range(2):
                    at = k.b.add(own, k.b.mul(rests, LONG(part)))
                    right.append([k.load(block, at, 8 * n, (stride, 4 * register), 1, WORD)[0] for register in range(2)])
                found += k.products(left, right, y[8 * m + 4 * n : 8 * m + 4 * n + 4])
        return found

    return written(y, (y, weights, w, apart, block, x, stride, rests, behind), code)


def term_of_words(term: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which of TERMS is in the place of each in `warp.term_of`: the upper half of a word is 8 terms behind, not 4."""
    return term // 16 * 16 + term % 4 + term // 4 % 2 * 8 + term // 8 % 2 * 4


@intrinsic
def each(typing: TypingContext, function: Dispatcher, given: UniTuple) -> Intrinsic:
    """Return what a function of numbers gives for the first numbers of some tuples, for the second ones, and so on: a tuple, or one for
    each number that it returns."""
    like, real = given.dtype, types.float32
    call = function.get_call_type(typing, (real,) * given.count, {})
    several = isinstance(call.return_type, types.UniTuple)
    assert (call.return_type.dtype if several else call.return_type) == real
    result = types.UniTuple(like, call.return_type.count) if several else like

    def write(context: TargetContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[Value]) -> Value:
        compiled, found = context.get_function(function, call), []
        for n in range(like.count):
            found.append(compiled(builder, [builder.extract_value(arguments[1], [k, n]) for k in range(given.count)]))
        context.add_linking_libs(getattr(compiled, "libs", ()))
        if not several:
            return cgutils.pack_array(builder, found)
        parts = ([builder.extract_value(value, k) for value in found] for k in range(result.count))
        return cgutils.pack_array(builder, [cgutils.pack_array(builder, part) for part in parts])

    return result(function, given), write


@intrinsic
def sigmoid(typing: TypingContext, y: UniTuple) -> Intrinsic:
    """Return 1 / (1 + e^-y) of each number, with an absolute error of 2e-7."""

    def code(k: Writer, *y: Value) -> Lane:
        powers = [k.function("ex2.approx.ftz.f32", k.b.fmul(x, REAL(-LOG2_E_TWICE / 2.0))) for x in y]
        return [k.function("rcp.approx.ftz.f32", k.b.fadd(power, REAL(1.0))) for power in powers]

    return written(y, (y,), code)
