"""Gradient steps of the off-policy agents in CPU kernels, equal to those by torch in `algorithms.dqn`, `td3` and `sac`.

Batches and networks are small, so torch would spend its time between operations. The size of a batch alone decides how it is cut into
shares. A thread computes one share after another in blocks of COLUMNS transitions (`cpu.losses`). The gradients are added in the order of
the shares, so they do not depend on the number of threads. Other kernels clip the sum, take an Adam step and move the target network.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType

import numpy as np
import torch
from torch import nn

from warprun.kernels import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.kernels.bound import Call
from warprun.kernels.mlp import Layer, backward
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team
from warprun.learning import optimizers
from warprun.learning.communicator import Communicator, mean_
from warprun.learning.cpu import losses
from warprun.learning.cpu.losses import LOSS, VALUE, Drawing, Memory, Net, Smoothing
from warprun.learning.cpu.optimizer import PIECE, FusedAdam, split
from warprun.learning.critics import Optimized, Trained
from warprun.learning.replay.ring import Transitions
from warprun.math import exp

SHARE_BLOCKS = 2
"""Blocks in a share; every share has its own gradient."""
THREADS_FROM = 8_000_000
"""A second thread is used from this number of parameters times transitions on: below it, waking the thread takes longer."""
BATCH_ARGUMENT = 3
"""Number of the batch among the arguments of a kernel, after the three of every call."""

float32 = np.float32


def bounds(share, shares, count):
    """Return the first transition of a share and the end (exclusive)."""
    blocks = -(-count // COLUMNS)
    return blocks * share // shares * COLUMNS, min(count, blocks * (share + 1) // shares * COLUMNS)


def backward_share(net, thread, used, memory, gradient):
    """Compute the gradient of a share from its first `used` blocks."""
    gradient[:] = float32(0.0)
    blocks, derivatives = net.blocks[thread, :used], net.derivatives[thread, :used]
    backward(net.parameters, net.layers, blocks, derivatives, memory.zeros, gradient)


def add_shares(first, last, gradients):
    """Add pieces `first` .. `last` - 1 of the gradients of all shares [share, P] to those of the first one."""
    begin, end = first * PIECE, min(last * PIECE, gradients.shape[1])
    total = gradients[0, begin:end]
    for share in range(1, gradients.shape[0]):
        more = gradients[share, begin:end]
        for m in range(total.size):
            total[m] += more[m]


def mean_terms(count, terms, means):
    """Write the means over `count` transitions to `means` [2], from the sums `terms` [share, 2]."""
    for k in range(means.size):
        total = 0.0
        for share in range(terms.shape[0]):
            total += terms[share, k]
        means[k] = total / count


def temperature_slope(log_temperature, mean_log_prob, target_entropy, slope, entropy):
    """Write the derivative of J(alpha) by log alpha (Haarnoja et al. 2018b, eq. 18) and the mean entropy, [1] each."""
    slope[0] = -exp(log_temperature[0]) * (mean_log_prob[()] + target_entropy)
    entropy[0] = -mean_log_prob[()]


Settings = bool | Smoothing | Drawing | None
"""What a loss depends on beside networks and batch."""
KERNEL = """
@njit(cache=True, **BOUND)
def {loss}(first, last, thread, shares, nets, settings, batch, memory):
    net = nets[-1]  # the trained one
    for share in range(first, last):
        begin, end = bounds(share, shares, batch.reward.size)
        memory.terms[share] = 0.0
        used = 0
        for row in range(begin, end, COLUMNS):
            {loss}_block(nets, settings, batch, row, min(COLUMNS, end - row), thread, used, memory, memory.terms[share])
            used += 1
        backward_share(net, thread, used, memory, net.gradient[share])

"""
LOSSES: dict[str, Callable[..., None]] = {
    "q_values": losses.q_values,
    "critics": losses.critics,
    "actor": losses.actor,
    "soft_critics": losses.soft_critics,
    "soft_actor": losses.soft_actor,
}
SOURCE = f'''"""Gradient steps of off-policy agents; written by warprun."""

from numba import njit

{"".join(KERNEL.format(loss=name) for name in LOSSES)}
@njit(cache=True, **BOUND)
def add(first, last, thread, gradients):
    add_shares(first, last, gradients)


@njit(cache=True, **BOUND)
def mean(first, last, thread, count, terms, means):
    mean_terms(count, terms, means)


@njit(cache=True, **BOUND)
def temperature(first, last, thread, log_temperature, mean_log_prob, target_entropy, slope, entropy):
    temperature_slope(log_temperature, mean_log_prob, target_entropy, slope, entropy)

'''


@cache
def module() -> ModuleType:
    """Return the compiled kernels."""
    functions: dict[str, Callable[..., object]] = {f"{name}_block": function for name, function in LOSSES.items()}
    functions |= {f.__name__: f for f in (bounds, backward_share, add_shares, mean_terms, temperature_slope)}
    return kernels.load_module("off_policy_updates", SOURCE, functions | {"BOUND": kernels.BOUND, "COLUMNS": COLUMNS})


class BatchKernels:
    """Computes gradients of batches of one size, for networks with up to `rows` rows in a block and `parameters` parameters."""

    def __init__(self, batch_size: int, rows: int, parameters: int, threads: int, communicator: Communicator) -> None:
        self.team = team(threads if batch_size * parameters > THREADS_FROM else 1)
        self.shares = -(-batch_size // (COLUMNS * SHARE_BLOCKS))
        self.communicator = communicator
        count = self.team.count
        self.memory = Memory(
            target=np.zeros((count, COLUMNS), np.float32),
            best=np.zeros((count, COLUMNS), np.int64),
            zeros=np.zeros(rows, np.float32),
            terms=np.zeros((self.shares, 2)),
            error=np.zeros(batch_size, np.float32),
        )
        self._calls: dict[str, tuple[Call, Transitions[torch.Tensor]]] = {}
        """By loss, with the last batch: without observation normalisation the next batch has the same memory."""
        self._means: dict[str, tuple[Call, torch.Tensor]] = {}
        """By loss: the kernel that computes the means of its terms, and these, [2] float64."""
        self.error = torch.from_numpy(self.memory.error)
        """[B]: the temporal-difference errors of the last batch."""

    def net(self, parameters: torch.Tensor, table: list[Layer], outputs: list[int]) -> Net:
        """Return a network for the kernels, on the memory of `parameters` [P] and with its own working memory."""
        rows = max(layer.out_row + layer.n_out for layer in table)
        blocks, derivatives = aligned_zeros(2, self.team.count, SHARE_BLOCKS, rows, COLUMNS)
        gradient = np.zeros((self.shares, len(parameters)), np.float32)
        return Net(parameters.numpy(), np.array(table, np.int64), np.array(outputs, np.int64), blocks, derivatives, gradient)

    def compute(self, loss: str, nets: tuple[Net, ...], settings: Settings, batch: Transitions[torch.Tensor]) -> None:
        """Compute one gradient per share of a loss (of LOSSES) for the last of `nets`; `KernelOptimizer.step` adds them.

        `nets` and `settings` are the same in every call for a loss.
        """
        if loss not in self._calls:
            arrays = Transitions(*(part.numpy() for part in batch))
            self._calls[loss] = Call(getattr(module(), loss), self.shares, nets, settings, arrays, self.memory), batch
        call, former = self._calls[loss]
        if batch is not former:
            call.change(BATCH_ARGUMENT, Transitions(*(part.numpy() for part in batch)))
            self._calls[loss] = call, batch
        self.team.share(call, self.shares)

    def means(self, loss: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the means of the value and of the loss, [] each, over the last batches of all processes.

        `loss` is what was computed last. The next call for it overwrites them.
        """
        rows = len(self.memory.error)
        if loss not in self._means:
            found = torch.zeros(2, dtype=torch.float64)
            self._means[loss] = Call(module().mean, rows, self.memory.terms, found.numpy()), found
        call, found = self._means[loss]
        call(0, 1, 0)
        mean_(self.communicator, rows, found)
        return found[VALUE], found[LOSS]


class KernelOptimizer:
    """Applies the gradient of a network in kernels, for Adam: the same as `Optimized.step` and `Trained.update_target` in torch."""

    def __init__(self, trained: Optimized[nn.Module], net: Net, max_norm: float | None, communicator: Communicator, rows: int) -> None:
        """`rows` are those of a batch."""
        optimizer = trained.optimizer
        assert isinstance(optimizer, optimizers.Adam)
        target = trained.target_parameters if isinstance(trained, Trained) else None
        threads = len(net.blocks)
        self.adam = FusedAdam(optimizer, trained.parameters, trained.learning_rate.tensor, max_norm, target, threads)
        self._team, self._pieces = split(len(trained.parameters), threads)
        self._add = Call(module().add, net.gradient)
        self.gradient = torch.from_numpy(net.gradient[0])
        self.communicator, self.rows = communicator, rows

    def step(self, tau: float) -> torch.Tensor:
        """Take a gradient step by the mean gradient of all processes and move the target by `tau`.

        Return the norm before clipping, [], which the next call overwrites.
        """
        self._team.share(self._add, self._pieces)
        mean_(self.communicator, self.rows, self.gradient)
        return self.adam.step(self.gradient, tau)
