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
from warprun.learning.draws import Stream
from warprun.learning.kernels.cpu.loops.minibatches import BUCKETS, DIGITS, Workspace, adapt, average, pick, shuffle, write_rows
from warprun.learning.kernels.draws import TOGETHER, Words
from warprun.learning.operations import Moments, TorchOperations

SIZES = 4
"""Sizes of epochs whose memory is kept."""


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
        # By NumPy: a recorded update makes none by torch.
        advantage, mean, variance = np.zeros(count, np.float32), np.zeros((), np.float32), np.zeros((), np.float32)
        tensors = torch.from_numpy(advantage), (torch.from_numpy(mean), torch.from_numpy(variance))
        return Picked(advantage, mean, variance, tensors)


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
        self._picked: dict[tuple[int, ...], list[Picked]] = {}
        """By the sizes of the minibatches of an epoch."""
        self._pick = Call(
            _module().picked_rows, np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32), *[zero.numpy()] * 2
        )
        self._average = Call(_module().averaged, self._mean.numpy(), 1, self._mean[1:].numpy(), zero.numpy())
        self._averaged: tuple[torch.Tensor, torch.Tensor] | None = None
        """Terms and norm of the last `average`."""
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
        sizes = tuple(len(range(*part.indices(len(order)))) for part in parts)
        if sizes not in self._picked:
            if len(self._picked) == SIZES:
                self._picked.clear()
            self._picked[sizes] = [Picked.of(size) for size in sizes]
        found, rows = self._picked[sizes], order.numpy()
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
        if self._averaged is None or terms is not self._averaged[0] or norm is not self._averaged[1]:
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
