"""Losses for kernels: on tiles of a batch, or on a mean over the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from warprun.learning.critics import ActingNetwork, Critics
from warprun.learning.descent import AnyOptimized
from warprun.learning.draws import Stream
from warprun.learning.kernels.arguments import ParameterRows


class TileLoss(NamedTuple):
    """A loss on a tile of rows, see `kernels.losses` and `kernels.policy_loss`."""

    loss: Callable[..., None]
    """loss(tile, nets, settings, batch): `nets` are the networks `reads`, then the trained one."""
    reads: tuple[nn.Module, ...] = ()
    """The networks that it reads, target networks too."""
    scratch: int = 0
    """Rows of memory that it keeps for each column (`set_scratch`)."""
    settings: object = 0
    """Numbers, tensors and random streams (`draws.Stream`), or tuples of them; not None, which kernels do not take."""
    terms: int = 2
    """Terms, of which means over the batch are shown."""
    parameter_rows: ParameterRows = ParameterRows(0, 0, 0)


class Layout(NamedTuple):
    """How the rows of a batch lie in memory, where kernels are faster if they know."""

    step_rows: int = 0
    """Rows of a step of the rollout, if all rows are taken in their order; else 0."""
    activations: torch.Tensor = torch.zeros(0)
    """[tiles, T, network rows, columns]: what the network computed for all rows (`Trajectory.activations`), which a gradient may change; or
    [0]."""


UNKNOWN = Layout()


class Gradient(Protocol):
    """Computes the gradients of a loss on tiles: `cpu.gradient.CpuGradient`, `cuda.gradient.CudaGradient`."""

    def __call__(self, batch: NamedTuple, count: int, layout: Layout = ...) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of the mean loss over `count` rows, and means of its terms; the next call overwrites both."""

    def compile_ahead(self, batch: NamedTuple) -> None:
        """Let another process compile the kernels for batches of such tensors (`kernels.ahead`)."""


class MeanLoss(NamedTuple):
    """A loss of one parameter and of the mean that the step before has found (`Taken.value`)."""

    slope: Callable[..., None]
    """slope(parameter [1], mean [1], number, into [1]) writes the derivative of the loss by the parameter."""
    number: float


def stacks(network: nn.Module) -> list[list[nn.Module]]:
    """Return the layers of a network whose gradients kernels compute, or of the networks that it stacks; each has one input."""
    if isinstance(network, Critics):
        return [list(critic.children()) for critic in network.each]
    assert isinstance(network, ActingNetwork)
    return [network.trained_layers()]


def with_layers(trained: Iterable[AnyOptimized]) -> list[AnyOptimized]:
    """Return those that train networks of layers."""
    return [each for each in trained if isinstance(each.network, ActingNetwork | Critics)]


def settings_for(settings: object, of_tensor: Callable[[torch.Tensor], object], of_stream: Callable[[Stream], object]) -> object:
    """Return what a loss depends on as the kernels of a device take it; numbers are float32."""
    if isinstance(settings, float):
        return np.float32(settings)
    if isinstance(settings, Stream):
        return of_stream(settings)
    if isinstance(settings, torch.Tensor):
        return of_tensor(settings)
    if not isinstance(settings, tuple):
        return settings
    each = (settings_for(part, of_tensor, of_stream) for part in settings)
    return settings._make(each) if hasattr(settings, "_make") else tuple(each)
