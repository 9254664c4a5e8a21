"""The kernels of gradient steps off policy (CPU)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from torch import nn

from warprun.kernels.bound import Call, kernel_module
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.learning.descent import AnyOptimized, Trained
from warprun.learning.kernels.cpu.gradient import CpuGradient
from warprun.learning.kernels.cpu.loops.gradient import Stack
from warprun.learning.kernels.cpu.optimizer import CpuAdam
from warprun.learning.kernels.layers import stacked_rows
from warprun.learning.kernels.tile_loss import MeanLoss, TileLoss, stacks, with_layers
from warprun.learning.optimizers import Adam

SHARE_TILES = 2
"""Tiles in a share, which are computed together; every share has its own gradient."""
THREADS_FROM = 8_000_000
"""A second thread is used from this number of parameters times transitions on: below it, waking the thread takes longer."""


class CpuKernels:
    """Makes the kernels of one learner, whose networks share working memory."""

    def __init__(self, trained: Iterable[AnyOptimized], batch_size: int, threads: int) -> None:
        """`trained`: what the learner trains."""
        networks = with_layers(trained)
        most = max(len(each.parameters) for each in networks)
        self._threads = threads if batch_size * most > THREADS_FROM else 1
        self._nets: dict[nn.Module, Stack] = {}
        for each in networks:
            self._nets[each.network] = net = self._net(each.network, each.parameters)
            if isinstance(each, Trained):
                self._nets[each.target] = net._replace(parameters=each.target_parameters.numpy())

    def _net(self, network: nn.Module, parameters: torch.Tensor) -> Stack:
        """Return a network on the memory of `parameters` [P], with its own working memory."""
        table, outputs = stacked_rows(stacks(network), parameters)
        rows, none = table[-1].out_row + table[-1].n_out, np.zeros(0, np.float32)
        blocks, slopes = aligned_zeros(2, self._threads, SHARE_TILES * rows * COLUMNS)
        return Stack(parameters.numpy(), np.array(table, np.int64), outputs, rows, none, none, blocks, slopes)

    def gradient(self, trained: AnyOptimized, loss: TileLoss) -> CpuGradient:
        """Return what computes the gradient of a loss by the parameters of a network."""
        return CpuGradient([self._nets[network] for network in (*loss.reads, trained.network)], loss, self._threads, SHARE_TILES)

    def adam(self, trained: AnyOptimized, optimizer: Adam, target: torch.Tensor | None) -> CpuAdam:
        """Return what moves the parameters of a network, and of its target network."""
        return CpuAdam(optimizer, trained.parameters, trained.learning_rate.tensor, trained.max_norm, target, self._threads)

    def slope(self, loss: MeanLoss, parameter: torch.Tensor, mean: torch.Tensor, into: torch.Tensor) -> Callable[[], None]:
        """Return what writes the slope of a loss of one parameter, on tensors [1]."""
        module = kernel_module(loss.slope.__name__, {"slope": [loss.slope]})
        return partial(Call(module.slope, parameter.numpy(), mean.numpy(), loss.number, into.numpy()), 0, 1, 0)
