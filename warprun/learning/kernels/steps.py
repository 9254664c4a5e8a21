"""Gradient steps of the off-policy agents in kernels, equal to those by torch in `algorithms.dqn`, `td3` and `sac`.

Batches and networks are small, so torch would spend its time between operations. A kernel computes the gradient of a loss on tiles
(`kernels.losses`); others clip it, take an Adam step and move the target network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from warprun.learning import optimizers
from warprun.learning.communicator import mean_
from warprun.learning.descent import AnyOptimized, Due, Taken, Trained
from warprun.learning.interfaces import Context
from warprun.learning.kernels.arguments import Drawn
from warprun.learning.kernels.cpu.updates import CpuKernels
from warprun.learning.kernels.losses import LOSS, VALUE
from warprun.learning.kernels.tile_loss import Gradient, MeanLoss, TileLoss
from warprun.learning.replay import TransitionBatch
from warprun.learning.settings.off_policy import OffPolicyConfig
from warprun.spec import GroupSpec

if TYPE_CHECKING:
    from warprun.learning.kernels.cuda.updates import CudaKernels


class KernelSteps:
    """Makes the gradient steps of one learner."""

    def __init__(self, kernels: CpuKernels | CudaKernels, group: GroupSpec, config: OffPolicyConfig, context: Context) -> None:
        self.kernels, self.rows, self.tau, self.communicator = kernels, config.batch_size, config.tau, context.communicator
        self.error = torch.zeros(config.batch_size, device=context.device)
        """[B]: the temporal-difference errors of the last batch."""
        self.example = _example(getattr(torch, group.action.dtype), context.device)

    def step(self, trained: AnyOptimized, loss: TileLoss | MeanLoss) -> Callable[..., Taken]:
        """Return a gradient step of `trained`: the same as `descent.TorchStep` of the same loss by torch."""
        return TileStep(self, trained, loss) if isinstance(loss, TileLoss) else MeanStep(self, trained, loss)


class TileStep:
    """A gradient step of one network, with that of its target network."""

    def __init__(self, of: KernelSteps, trained: AnyOptimized, loss: TileLoss) -> None:
        assert isinstance(trained.optimizer, optimizers.Adam)
        self._of = of
        self.gradient: Gradient = of.kernels.gradient(trained, loss)
        self._adam = of.kernels.adam(trained, trained.optimizer, trained.target_parameters if isinstance(trained, Trained) else None)
        self.gradient.compile_ahead(of.example)
        self._adam.compile_ahead()
        self._batch: TransitionBatch | None = None
        self._drawn: Drawn[torch.Tensor] | None = None
        """`_batch` as the loss takes it: without observation normalisation the next batch is the same object with new numbers."""

    def __call__(self, due: Due, batch: TransitionBatch, *_: object) -> Taken:
        """Take a step on the loss of a batch. A loss by torch takes more, for networks with memory, which kernels do not compute."""
        of = self._of
        if self._drawn is None or batch is not self._batch:
            self._batch, self._drawn = batch, Drawn.of(batch, of.error)
        gradient, means = self.gradient(self._drawn, of.rows)
        mean_(of.communicator, of.rows, gradient, means)
        norm = self._adam.step(gradient, of.tau if due.target else 0.0)
        return Taken(means[LOSS], means[VALUE], of.error, norm)


class MeanStep:
    """A gradient step of one parameter by the mean that the step before has found."""

    def __init__(self, of: KernelSteps, trained: AnyOptimized, loss: MeanLoss) -> None:
        assert isinstance(trained.optimizer, optimizers.Adam)
        self._of, self._parameter, self._loss = of, trained.parameters, loss
        self._adam = of.kernels.adam(trained, trained.optimizer, None)
        self._gradient = torch.zeros(1, device=trained.parameters.device)
        self._slope: Callable[[], None] | None = None

    def __call__(self, due: Due, before: Taken) -> Taken:
        """Take a step and return `before`, which is always on the same memory: this step has no numbers to show."""
        if self._slope is None:
            self._slope = self._of.kernels.slope(self._loss, self._parameter, before.value.view(1), self._gradient)
        self._slope()
        self._adam.step(self._gradient)
        return before


def _example(action: torch.dtype, device: torch.device) -> Drawn[torch.Tensor]:
    """Return a batch of one number each, whose types are those of all batches with actions of a dtype."""
    row, number = torch.zeros(1, 1, device=device), torch.zeros(1, device=device)
    return Drawn(row, row.to(action), number, number, row, number, number)
