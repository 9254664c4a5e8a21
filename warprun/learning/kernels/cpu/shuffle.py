"""A random order in one kernel (CPU): keys and a radix sort, the same order as that of `draws.permutation`, in a fifth of its time."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from warprun.kernels import ahead
from warprun.kernels.bound import Call, kernel_module, signature
from warprun.kernels.compile import merged_function
from warprun.learning.draws import TOGETHER, Stream, Words, bits_of, key_of

DIGIT, BUCKETS, DIGITS = 11, 2048, 3
"""Bits of a digit, its values, and the digits of a key of 31 bits."""
STREAM_ARGUMENT, MEMORY_ARGUMENT, STEP_ARGUMENT = 0, 1, 2
"""Numbers of the arguments, after the three of every call."""

uint32, int64 = np.uint32, np.int64


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


@cache
def _module() -> ModuleType:
    return kernel_module("shuffle", {"shuffled": [shuffle, write_rows]}, merged_function)


class CpuPermutation:
    """Random orders by a kernel."""

    def __init__(self) -> None:
        self._number = torch.zeros((), dtype=torch.int64)
        self._words = Stream(0, self._number).words()
        self._shape = 0, 1
        """Rows, and rows of a step."""
        self._call = Call(_module().shuffled, self._words, _memory(*self._shape), 1)
        self._order = torch.zeros(0, dtype=torch.int64)

    def compile_ahead(self) -> None:
        """Let another process compile the kernel (`kernels.ahead`)."""
        ahead.want(_module(), "shuffled", signature(self._call.arguments))

    def __call__(self, n: int, seed: int, draw: torch.Tensor, step_rows: int = 1) -> torch.Tensor:
        """Return a random order of 0..n-1, [n] int64, see `draws.permutation`, which the next call overwrites."""
        self._number.copy_(draw)
        words: Words = Stream(seed, self._number).words()
        if words[:2] != self._words[:2]:
            self._words = words
            self._call.change(STREAM_ARGUMENT, words)
        if (n, step_rows) != self._shape:
            self._shape = n, step_rows
            memory = _memory(n, step_rows)
            self._call.change(MEMORY_ARGUMENT, memory)
            self._call.change(STEP_ARGUMENT, step_rows)
            self._order = torch.from_numpy(memory.rows)
        self._call(0, 1, 0)
        return self._order


def _memory(rows: int, step_rows: int) -> Workspace:
    n = rows // step_rows * -(-step_rows // TOGETHER)
    keys, order = np.zeros((2, n), np.uint32), np.zeros((2, n), np.int64)
    return Workspace(keys[0], keys[1], order[0], order[1], np.zeros((DIGITS, BUCKETS), np.int64), np.zeros(rows, np.int64))
