"""Between the gradients of minibatches (CPU): random orders, advantages and their moments, means, an adapted learning rate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warprun.learning.formulas import adapted, averaged
from warprun.learning.kernels.draws import TOGETHER, bits_of, key_of

DIGIT, BUCKETS, DIGITS = 11, 2048, 3
"""Bits of a digit, its values, and the digits of a key of 31 bits."""
uint32, int64, float32, float64 = np.uint32, np.int64, np.float32, np.float64


class Workspace(NamedTuple):
    """Keys and orders of n runs of rows, before and after a pass of the sort, and the order of the rows."""

    keys: NDArray[np.uint32]
    sorted_keys: NDArray[np.uint32]
    """[n] each."""
    order: NDArray[np.int64]
    sorted_order: NDArray[np.int64]
    places: NDArray[np.int64]
    """[DIGITS, BUCKETS]: where the next key with a digit goes."""
    rows: NDArray[np.int64]
    """The result: the rows of the runs, one run after the other."""


def shuffle(words, memory):
    """Write the order of a draw, sorted by its keys, to `memory.sorted_order`; equal keys keep their order."""
    key, n = key_of(words), memory.keys.size
    memory.places[:] = 0
    for i in range(n):
        bits = bits_of(key, i) >> uint32(1)
        memory.keys[i] = bits
        memory.order[i] = i
        for digit in range(DIGITS):
            memory.places[digit, int64((bits >> uint32(DIGIT * digit)) & uint32(BUCKETS - 1))] += 1
    for digit in range(DIGITS):
        total = 0
        for bucket in range(BUCKETS):
            count = memory.places[digit, bucket]
            memory.places[digit, bucket] = total
            total += count
    scatter(memory.places[0], 0, memory.keys, memory.order, memory.sorted_keys, memory.sorted_order)
    scatter(memory.places[1], 1, memory.sorted_keys, memory.sorted_order, memory.keys, memory.order)
    scatter(memory.places[2], 2, memory.keys, memory.order, memory.sorted_keys, memory.sorted_order)


def write_rows(memory, step_rows):
    """Write the rows of the sorted runs to `memory.rows`; the last run of a step of `step_rows` rows can be shorter than TOGETHER."""
    runs, at = -(-step_rows // TOGETHER), 0
    for run in memory.sorted_order:
        within = run % runs * TOGETHER
        first = run // runs * step_rows + within
        for row in range(first, first + min(TOGETHER, step_rows - within)):
            memory.rows[at] = row
            at += 1


def scatter(places, digit, keys, order, sorted_keys, sorted_order):
    """Put keys, and what they belong to, in the order of one digit."""
    for i in range(keys.size):
        bits = keys[i]
        bucket = int64((bits >> uint32(DIGIT * digit)) & uint32(BUCKETS - 1))
        place = places[bucket]
        places[bucket] = place + 1
        sorted_keys[place] = bits
        sorted_order[place] = order[i]


def pick(advantage, order, picked, mean, variance):
    """Write the advantages of the rows `order` to `picked` [B], and their mean and unbiased variance, [] each."""
    total = float64(0.0)
    for i in range(order.size):
        picked[i] = advantage[order[i]]
        total += float64(picked[i])
    middle, squares = total / order.size, float64(0.0)
    for i in range(order.size):
        difference = float64(picked[i]) - middle
        squares += difference * difference
    mean[()] = middle
    variance[()] = squares / max(1, order.size - 1)


def average(mean, number, terms, norm):
    """Make `mean` [K + 1] that of the terms [K] and norms [] of the first `number` gradient steps, by those of the last of them."""
    for k in range(terms.size):
        mean[k] = averaged(mean[k], terms[k], number)
    last = terms.size
    mean[last] = averaged(mean[last], norm[()], number)


def adapt(kl, desired, given, low, high, factor, learning_rate):
    """Change a learning rate by the divergence `kl` [] of an update; the same as `TorchOperations.adapt`."""
    factor[()] = adapted(factor[()], kl[()], desired, low, high)
    learning_rate[()] = factor[()] * given
