"""Losses of off-policy agents for kernels: on tiles of a batch, or on a mean over the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from warprun.learning.critics import ActingNetwork, Critics
from warprun.learning.descent import AnyOptimized, Taken
from warprun.learning.draws import Stream


class TileLoss(NamedTuple):
    """A loss on a tile of transitions, see `kernels.losses`."""

    loss: Callable[..., None]
    """loss(tile, nets, settings, batch, error): `nets` are the networks `reads`, then the trained one."""
    reads: tuple[nn.Module, ...] = ()
    """The networks that it reads, target networks too."""
    scratch: int = 0
    """Rows of memory that it keeps for each column (`set_scratch`)."""
    settings: object = 0
    """Numbers, tensors and random streams (`draws.Stream`), or tuples of them; not None, which kernels do not take."""


class MeanLoss(NamedTuple):
    """A loss of one parameter and of the mean that the step before has found (`Taken.value`)."""

    slope: Callable[..., None]
    """slope(parameter [1], mean [1], number, into [1]) writes the derivative of the loss by the parameter."""
    number: float


class Steps(Protocol):
    """Makes the gradient steps of one learner by kernels."""

    def step(self, trained: AnyOptimized, loss: TileLoss | MeanLoss) -> Callable[..., Taken]:
        """Return a gradient step: the same as `descent.TorchStep` of the same loss by torch."""


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
    return tuple(settings_for(each, of_tensor, of_stream) for each in settings) if isinstance(settings, tuple) else settings
