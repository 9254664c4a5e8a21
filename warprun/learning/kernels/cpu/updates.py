"""Gradient steps of the off-policy agents in CPU kernels, equal to those by torch in `algorithms.dqn`, `td3` and `sac`.

Batches and networks are small, so torch would spend its time between operations. The size of a batch alone decides how
it is cut into shares. A thread computes one share after another in blocks of COLUMNS transitions (`cpu.losses`). The
gradients are added in the order of the shares, so they do not depend on the number of threads. Other kernels clip the
sum, take an Adam step and move the target network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType

import numpy as np
import torch
from torch import nn

from warprun.kernels import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.kernels.bound import Call, kernel_module
from warprun.kernels.mlp import backward
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team
from warprun.learning import optimizers
from warprun.learning.communicator import mean_
from warprun.learning.critics import Critics, Head
from warprun.learning.descent import AnyOptimized, Due, Taken, Trained
from warprun.learning.draws import Stream
from warprun.learning.interfaces import Context
from warprun.learning.kernels.cpu import losses
from warprun.learning.kernels.cpu.losses import LOSS, VALUE, Net, Workspace
from warprun.learning.kernels.cpu.optimizer import PIECE, CpuAdam, split
from warprun.learning.kernels.layers import stacked_rows
from warprun.learning.replay import TransitionBatch, Transitions
from warprun.learning.settings.off_policy import OffPolicyConfig
from warprun.math import exp

SHARE_BLOCKS = 2
"""Blocks in a share; every share has its own gradient."""
THREADS_FROM = 8_000_000
"""A second thread is used from this number of parameters times transitions on: below it, waking the thread takes longer."""

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


def temperature_slope(log_temperature, entropy, target_entropy, slope):
    """Write the derivative of J(alpha) by log alpha, [1]; Haarnoja et al. 2018b, eq. 18."""
    slope[0] = exp(log_temperature[0]) * (entropy[()] - target_entropy)


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

{"".join(KERNEL.format(loss=name) for name in LOSSES)}'''


@cache
def _losses() -> ModuleType:
    functions: dict[str, Callable[..., object]] = {f"{name}_block": function for name, function in LOSSES.items()}
    functions |= {"bounds": bounds, "backward_share": backward_share}
    return kernels.load_module("off_policy_losses", SOURCE, functions | {"BOUND": kernels.BOUND, "COLUMNS": COLUMNS})


@cache
def _module() -> ModuleType:
    return kernel_module("off_policy_updates", {"add": [add_shares], "mean": [mean_terms], "temperature": [temperature_slope]})


def for_kernels(settings: object) -> object:
    """Return what a loss depends on as kernels take it: tensors as arrays on their memory, streams as words."""
    if isinstance(settings, Stream):
        return settings.words()
    if isinstance(settings, torch.Tensor):
        return settings.numpy()
    return tuple(map(for_kernels, settings)) if isinstance(settings, tuple) else settings


class KernelSteps:
    """Makes the gradient steps of one learner, which share working memory."""

    def __init__(self, trained: Iterable[AnyOptimized], config: OffPolicyConfig, context: Context) -> None:
        """`trained`: the networks without memory, and what else the learner trains."""
        networks = [(each, each.network) for each in trained if isinstance(each.network, Head | Critics)]
        most = max(len(each.parameters) for each, _ in networks)
        self.rows, self.tau, self.communicator = config.batch_size, config.tau, context.communicator
        self.team = team(context.threads if self.rows * most > THREADS_FROM else 1)
        self.shares = -(-self.rows // (COLUMNS * SHARE_BLOCKS))
        self.nets: dict[nn.Module, Net] = {}
        for each, network in networks:
            self.nets[network] = net = self._net(network, each.parameters)
            if isinstance(each, Trained):
                self.nets[each.target] = net._replace(parameters=each.target_parameters.numpy())
        self.memory = Workspace(
            target=np.zeros((self.team.count, COLUMNS), np.float32),
            best=np.zeros((self.team.count, COLUMNS), np.int64),
            zeros=np.zeros(max(net.blocks.shape[2] for net in self.nets.values()), np.float32),
            terms=np.zeros((self.shares, 2)),
            error=np.zeros(self.rows, np.float32),
        )

    def step(self, loss: str, trained: AnyOptimized, reads: tuple[nn.Module, ...], settings: object) -> KernelStep | TemperatureStep:
        """Return a gradient step of `trained`; `settings` of the loss `temperature` are the target entropy."""
        if loss == "temperature":
            assert isinstance(settings, float)
            return TemperatureStep(trained, settings)
        return KernelStep(self, loss, trained, reads, settings)

    def _net(self, network: Head | Critics, parameters: torch.Tensor) -> Net:
        """Return a network on the memory of `parameters` [P], with its own working memory."""
        if isinstance(network, Critics):
            stacks = [list(critic.children()) for critic in network.each]
        else:
            stacks = [network.policy_layers()]
        table, outputs = stacked_rows(stacks, parameters)
        blocks, derivatives = aligned_zeros(2, self.team.count, SHARE_BLOCKS, outputs[-1] + 1, COLUMNS)
        gradient = np.zeros((self.shares, len(parameters)), np.float32)
        return Net(parameters.numpy(), np.array(table, np.int64), np.array(outputs, np.int64), blocks, derivatives, gradient)


class KernelStep:
    """A gradient step of one network in kernels, with that of its target network: the same as `descent.TorchStep`."""

    def __init__(self, of: KernelSteps, loss: str, trained: AnyOptimized, reads: Iterable[nn.Module], given: object) -> None:
        """`loss` is one of LOSSES, which takes the networks `reads`, then the trained one, and the settings `given`."""
        self._of, self._loss, self._settings = of, loss, for_kernels(given)
        self._nets = (*(of.nets[network] for network in reads), of.nets[trained.network])
        gradients, target = self._nets[-1].gradient, trained.target_parameters if isinstance(trained, Trained) else None
        assert isinstance(trained.optimizer, optimizers.Adam)
        rate, threads = trained.learning_rate.tensor, of.team.count
        self._adam = CpuAdam(trained.optimizer, trained.parameters, rate, trained.max_norm, target, threads)
        self._gradient = torch.from_numpy(gradients[0])
        self._means = torch.zeros(2, dtype=torch.float64)
        self._compute: Call | None = None
        self._batch: TransitionBatch | None = None
        """The batch that `_compute` has: without observation normalisation the next one has the same memory."""
        self._adders, self._pieces = split(len(trained.parameters), threads)
        self._add = Call(_module().add, gradients)
        self._mean = Call(_module().mean, of.rows, of.memory.terms, self._means.numpy())
        self._taken = Taken(self._means[LOSS], self._means[VALUE], torch.from_numpy(of.memory.error), self._adam.norm)

    def __call__(self, due: Due, batch: TransitionBatch, *_: object) -> Taken:
        """Take a step on the loss of a batch. A loss by torch takes more, for networks with memory, which kernels do not compute."""
        of = self._of
        of.team.share(self._compute if self._compute and batch is self._batch else self._bound(batch), of.shares)
        self._adders.share(self._add, self._pieces)
        mean_(of.communicator, of.rows, self._gradient)
        self._adam.step(self._gradient, of.tau if due.target else 0.0)
        self._mean(0, 1, 0)
        mean_(of.communicator, of.rows, self._means)
        return self._taken

    def _bound(self, batch: TransitionBatch) -> Call:
        """Return the kernel of the loss with a batch."""
        arrays, self._batch = Transitions(*(part.numpy() for part in batch)), batch
        if self._compute is None:
            nets, memory = self._nets, self._of.memory
            self._compute = Call(getattr(_losses(), self._loss), self._of.shares, nets, self._settings, arrays, memory)
        else:
            self._compute.change(batch=arrays)
        return self._compute


class TemperatureStep:
    """The gradient step of the temperature of SAC, by the entropy that the actor's step has found."""

    def __init__(self, temperature: AnyOptimized, target_entropy: float) -> None:
        assert isinstance(temperature.optimizer, optimizers.Adam)
        self._log, self._target = temperature.parameters, target_entropy
        self._adam = CpuAdam(temperature.optimizer, self._log, temperature.learning_rate.tensor, None)
        self._gradient = torch.zeros(1)
        self._slope: Call | None = None

    def __call__(self, due: Due, actor: Taken) -> Taken:
        """Take a step and return `actor`, which is always on the same memory: this step has no numbers to show."""
        if self._slope is None:
            arrays = (self._log.numpy(), actor.value.numpy(), self._target, self._gradient.numpy())
            self._slope = Call(_module().temperature, *arrays)
        self._slope(0, 1, 0)
        self._adam.step(self._gradient)
        return actor
