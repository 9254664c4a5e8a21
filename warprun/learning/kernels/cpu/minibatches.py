"""Kernels (CPU) for the work between the gradients of minibatches, so that machine code can repeat an update of many gradient steps.

Random orders by keys and a radix sort, the same as those of `draws.permutation` in a fifth of its time; the advantages of a minibatch and
their moments; means over gradient steps; a learning rate that follows the divergence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from warprun.kernels import ahead
from warprun.kernels.bound import Call, Function, kernel_module, signature
from warprun.kernels.compile import merged_function
from warprun.learning.draws import TOGETHER, Stream, Words, bits_of, key_of
from warprun.learning.formulas import adapted, averaged
from warprun.learning.operations import Moments, TorchOperations

DIGIT, BUCKETS, DIGITS = 11, 2048, 3
"""Bits of a digit, its values, and the digits of a key of 31 bits."""
SIZES = 4
"""Sizes of epochs whose memory is kept."""

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


class Picked(NamedTuple):
    """Memory that stays for the advantages of a minibatch and their moments."""

    advantage: NDArray[np.float32]
    """[B]."""
    mean: NDArray[np.float32]
    variance: NDArray[np.float32]
    """[] each."""
    tensors: tuple[torch.Tensor, Moments]
    """The same memory."""

    @staticmethod
    def of(count: int) -> Picked:
        arrays = np.zeros(count, float32), np.zeros((), float32), np.zeros((), float32)  # by NumPy: a recorded update makes none by torch
        advantage, mean, variance = map(torch.from_numpy, arrays)
        return Picked(*arrays, (advantage, (mean, variance)))


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


@cache
def _module() -> ModuleType:
    made_of: dict[str, list[Function]] = {
        "shuffled": [shuffle, write_rows],
        "picked_rows": [pick],
        "averaged": [average],
        "adapted": [adapt],
    }
    return kernel_module("minibatches", made_of, merged_function)


class CpuMinibatches:
    """The operations of one group that only several gradient steps need, see `Operations`."""

    def __init__(self, reference: TorchOperations) -> None:
        self._mean, self._adapts = torch.zeros(2 + len(reference.loss.terms)), reference.config.adapts_learning_rate
        zero = torch.zeros(())
        words: Words = Stream(0, torch.zeros((), dtype=torch.int64)).words()
        self._shape = 0, 1
        """Rows, and rows of a step, of the last order."""
        self._shuffle = Call(_module().shuffled, words, _memory(*self._shape), 1)
        self._order = torch.zeros(0, dtype=torch.int64)
        self._picked: dict[tuple[int, int], list[Picked]] = {}
        """By rows and minibatches of an epoch."""
        self._pick = Call(
            _module().picked_rows, np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32), *[zero.numpy()] * 2
        )
        self._average = Call(_module().averaged, self._mean.numpy(), 1, self._mean[1:].numpy(), zero.numpy())
        self._averaged = self._mean, zero
        """Terms and norm that `_average` has."""
        given, (low, high) = reference.config.learning_rate, reference.rate_limits
        numbers = given, low, high, reference.rate_factor.numpy(), reference.learning_rate.numpy()
        self._adapt = Call(_module().adapted, zero.numpy(), 1.0, *numbers)

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        for call in (self._shuffle, self._pick, self._average, *([self._adapt] if self._adapts else [])):
            ahead.want(_module(), call.kernel.__name__, signature(call.arguments))

    def permutation(self, n: int, seed: int, draw: torch.Tensor, step_rows: int = 1) -> torch.Tensor:
        """Return a random order of 0..n-1, [n] int64, see `draws.permutation`, which the next call overwrites."""
        self._shuffle.change(words=Stream(seed, draw).words())
        if (n, step_rows) != self._shape:
            self._shape = n, step_rows
            memory = _memory(n, step_rows)
            self._shuffle.change(memory=memory, step_rows=step_rows)
            self._order = torch.from_numpy(memory.rows)
        self._shuffle(0, 1, 0)
        return self._order

    def pick(self, advantage: torch.Tensor, order: torch.Tensor, parts: Sequence[slice]) -> list[tuple[torch.Tensor, Moments]]:
        """Return the advantages of each part of the rows `order` [R], and their mean and variance; the next call may overwrite them."""
        size = len(order), len(parts)
        if size not in self._picked:
            if len(self._picked) == SIZES:
                self._picked.clear()
            self._picked[size] = [Picked.of(part.stop - part.start) for part in parts]
        found, rows = self._picked[size], order.numpy()
        self._pick.change(advantage=advantage.numpy())
        for part, (picked, mean, variance, _) in zip(parts, found, strict=True):
            self._pick.change(order=rows[part], picked=picked, mean=mean, variance=variance)
            self._pick(0, 1, 0)
        return [each.tensors for each in found]

    def average(self, mean: torch.Tensor | None, number: int, terms: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        """Return the means over `number` gradient steps, [K+1], see `Operations`, always in the same memory."""
        assert len(terms) == len(self._mean) - 1
        if mean is not None and mean is not self._mean:
            self._mean.copy_(mean)
        if terms is not self._averaged[0] or norm is not self._averaged[1]:
            self._averaged = terms, norm
            self._average.change(terms=terms.numpy(), norm=norm.numpy())
        self._average.change(number=number)
        self._average(0, 1, 0)
        return self._mean

    def adapt(self, kl: torch.Tensor, desired: float) -> None:
        self._adapt.change(kl=kl.numpy(), desired=desired)
        self._adapt(0, 1, 0)


def _memory(rows: int, step_rows: int) -> Workspace:
    n = rows // step_rows * -(-step_rows // TOGETHER)
    keys, order = np.zeros((2, n), np.uint32), np.zeros((2, n), np.int64)
    return Workspace(keys[0], keys[1], order[0], order[1], np.zeros((DIGITS, BUCKETS), np.int64), np.zeros(rows, np.int64))
