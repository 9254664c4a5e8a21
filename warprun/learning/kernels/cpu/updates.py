"""Gradient steps of the off-policy agents in CPU kernels, equal to those by torch in `algorithms.dqn`, `td3` and `sac`.

Batches and networks are small, so torch would spend its time between operations. The size of a batch alone decides how
it is cut into shares. A thread computes one share after another in tiles of COLUMNS transitions (`kernels.losses`). The
gradients are added in the order of the shares, so they do not depend on the number of threads. Other kernels clip the
sum, take an Adam step and move the target network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from warprun.kernels import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.kernels.bound import Call, kernel_module
from warprun.kernels.mlp import backward
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team
from warprun.learning import optimizers
from warprun.learning.communicator import mean_
from warprun.learning.descent import AnyOptimized, Due, Taken, Trained
from warprun.learning.draws import Stream
from warprun.learning.interfaces import Context
from warprun.learning.kernels.cpu.optimizer import PIECE, CpuAdam, split
from warprun.learning.kernels.cpu.tiles import Net, Tile, clear_rest
from warprun.learning.kernels.layers import Outputs, stacked_rows
from warprun.learning.kernels.losses import LOSS, VALUE
from warprun.learning.kernels.tile_loss import MeanLoss, TileLoss, settings_for, stacks, with_layers
from warprun.learning.replay import TransitionBatch, Transitions
from warprun.learning.settings.off_policy import OffPolicyConfig

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
    blocks, slopes = net.blocks[thread, :used], net.slopes[thread, :used]
    backward(net.parameters, net.layers, blocks, slopes, memory.zeros, gradient)


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


def on_tile(stack, thread, block):
    """Return a network on the columns of block number `block` of a thread."""
    return Net(stack.parameters, stack.layers, stack.outputs, stack.blocks[thread, block], stack.slopes[thread, block])


KERNEL = '''"""Gradient steps on the loss {loss}; written by warprun."""

from numba import njit


@njit(cache=True, **BOUND)
def {loss}(first, last, thread, shares, nets, settings, batch, memory):
    for share in range(first, last):
        begin, end = bounds(share, shares, batch.reward.size)
        memory.terms[share] = 0.0
        used = 0
        for row in range(begin, end, COLUMNS):
            tile = Tile(row, min(COLUMNS, end - row), memory.scratch[thread], memory.terms[share], memory.zeros)
            on = ({on})
            of_tile(tile, on, settings, batch, memory.error)
            clear_rest(tile, on[-1])
            used += 1
        backward_share(nets[-1], thread, used, memory, nets[-1].gradient[share])
'''


@cache
def _loss_module(loss: Callable[..., None], keeps: tuple[bool, ...]) -> ModuleType:
    """Return the kernel of a loss on tiles of networks; `keeps`: of which of them a share keeps the blocks of all tiles."""
    on = (f"on_tile(nets[{k}], thread, {'used' if kept else 0}), " for k, kept in enumerate(keeps))
    source = KERNEL.format(loss=loss.__name__, on="".join(on))
    functions = {each.__name__: each for each in (bounds, backward_share, clear_rest, on_tile, Tile)}
    return kernels.load_module(f"{loss.__name__}_loss", source, functions | {"of_tile": loss, "BOUND": kernels.BOUND, "COLUMNS": COLUMNS})


@cache
def _module() -> ModuleType:
    return kernel_module("off_policy_updates", {"add": [add_shares], "mean": [mean_terms]})


class Stack(NamedTuple):
    """A network, or several that share their inputs, with working memory; a target network has that of the network it follows."""

    parameters: NDArray[np.float32]
    """[P]."""
    layers: NDArray[np.int64]
    """[layer, 7], see `warprun.kernels.mlp`."""
    outputs: Outputs
    blocks: NDArray[np.float32]
    """[thread, block, row, column]: activations."""
    slopes: NDArray[np.float32]
    """[thread, block, row, column]: derivatives of the loss by the activations."""
    gradient: NDArray[np.float32]
    """[share, P]."""


class Workspace(NamedTuple):
    """Working memory in addition to that of the networks."""

    scratch: NDArray[np.float32]
    """[thread, row, column]: what a loss keeps of each column."""
    zeros: NDArray[np.float32]
    """[row]."""
    terms: NDArray[np.float64]
    """[share, 2]: sums of the terms."""
    error: NDArray[np.float32]
    """[B]: the temporal-difference errors."""


class CpuSteps:
    """Makes the gradient steps of one learner, which share working memory."""

    def __init__(self, trained: Iterable[AnyOptimized], config: OffPolicyConfig, context: Context) -> None:
        """`trained`: the networks without memory, and what else the learner trains."""
        networks = with_layers(trained)
        most = max(len(each.parameters) for each in networks)
        self.rows, self.tau, self.communicator = config.batch_size, config.tau, context.communicator
        self.team = team(context.threads if self.rows * most > THREADS_FROM else 1)
        self.shares = -(-self.rows // (COLUMNS * SHARE_BLOCKS))
        self.nets: dict[nn.Module, Stack] = {}
        for each in networks:
            self.nets[each.network] = net = self._net(each.network, each.parameters)
            if isinstance(each, Trained):
                self.nets[each.target] = net._replace(parameters=each.target_parameters.numpy())
        self.zeros = np.zeros(max(net.blocks.shape[2] for net in self.nets.values()), np.float32)
        self.terms, self.error = np.zeros((self.shares, 2)), np.zeros(self.rows, np.float32)

    def step(self, trained: AnyOptimized, loss: TileLoss | MeanLoss) -> CpuStep | MeanStep:
        """Return a gradient step of `trained`."""
        return CpuStep(self, trained, loss) if isinstance(loss, TileLoss) else MeanStep(trained, loss)

    def _net(self, network: nn.Module, parameters: torch.Tensor) -> Stack:
        """Return a network on the memory of `parameters` [P], with its own working memory."""
        table, outputs = stacked_rows(stacks(network), parameters)
        blocks, slopes = aligned_zeros(2, self.team.count, SHARE_BLOCKS, table[-1].out_row + table[-1].n_out, COLUMNS)
        gradient = np.zeros((self.shares, len(parameters)), np.float32)
        return Stack(parameters.numpy(), np.array(table, np.int64), outputs, blocks, slopes, gradient)


class CpuStep:
    """A gradient step of one network in kernels, with that of its target network: the same as `descent.TorchStep`."""

    def __init__(self, of: CpuSteps, trained: AnyOptimized, loss: TileLoss) -> None:
        networks = (*loss.reads, trained.network)
        self._of, self._nets = of, tuple(of.nets[network] for network in networks)
        keeps = tuple(net.blocks is self._nets[-1].blocks for net in self._nets)
        self._kernel = getattr(_loss_module(loss.loss, keeps), loss.loss.__name__)
        self._settings = settings_for(loss.settings, torch.Tensor.numpy, Stream.words)
        scratch = np.zeros((of.team.count, max(1, loss.scratch), COLUMNS), np.float32)
        self._memory = Workspace(scratch, of.zeros, of.terms, of.error)
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
        self._mean = Call(_module().mean, of.rows, of.terms, self._means.numpy())
        self._taken = Taken(self._means[LOSS], self._means[VALUE], torch.from_numpy(of.error), self._adam.norm)

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
            nets, memory = self._nets, self._memory
            self._compute = Call(self._kernel, self._of.shares, nets, self._settings, arrays, memory)
        else:
            self._compute.change(batch=arrays)
        return self._compute


class MeanStep:
    """A gradient step of one parameter by the mean that the step before has found."""

    def __init__(self, trained: AnyOptimized, loss: MeanLoss) -> None:
        assert isinstance(trained.optimizer, optimizers.Adam)
        self._parameter, self._loss = trained.parameters, loss
        self._adam = CpuAdam(trained.optimizer, self._parameter, trained.learning_rate.tensor, trained.max_norm)
        self._gradient = torch.zeros(1)
        self._slope: Call | None = None

    def __call__(self, due: Due, before: Taken) -> Taken:
        """Take a step and return `before`, which is always on the same memory: this step has no numbers to show."""
        if self._slope is None:
            module = kernel_module(self._loss.slope.__name__, {"slope": [self._loss.slope]})
            arrays = (self._parameter.numpy(), before.value.view(1).numpy(), self._loss.number, self._gradient.numpy())
            self._slope = Call(module.slope, *arrays)
        self._slope(0, 1, 0)
        self._adam.step(self._gradient)
        return before
