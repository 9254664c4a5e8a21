"""The kernels of gradient steps off policy (CUDA).

Batches are small, so tiles are as narrow as can be if that occupies more multiprocessors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from torch import nn

from warprun.learning.descent import AnyOptimized, Trained
from warprun.learning.kernels.cuda.gradient import COLUMNS, CudaGradient, Packed, Placed, gradient_rows
from warprun.learning.kernels.cuda.optimizer import CudaAdam
from warprun.learning.kernels.cuda.sums import BlockSums
from warprun.learning.kernels.layers import stacked_rows
from warprun.learning.kernels.tile_loss import MeanLoss, TileLoss, stacks, with_layers
from warprun.learning.optimizers import Adam
from warprun.simulation.codegen.templates import fill
from warprun.simulation.cuda_launch import launch, module_for, multiprocessors, on_device
from warprun.simulation.cuda_layers import Layers, chosen

SLOPE = '''"""The slope of $name on CUDA; written by warprun."""

from numba import cuda


@cuda.jit(cache=CACHE, fastmath=False)
def slope(parameter, mean, number, into):
    formula(parameter, mean, number, into)
'''


class CudaKernels:
    """Makes the kernels of one learner."""

    def __init__(self, trained: Iterable[AnyOptimized], batch_size: int) -> None:
        """`trained`: what the learner trains."""
        self._batch_size = batch_size
        self._parameters: dict[nn.Module, torch.Tensor] = {}
        self._followed: dict[nn.Module, nn.Module] = {}
        """A target network -> the network that it follows."""
        self._sums: dict[nn.Module, BlockSums] = {}
        """The gradients of a network."""
        for each in with_layers(trained):
            self._parameters[each.network] = each.parameters
            if isinstance(each, Trained):
                self._parameters[each.target] = each.target_parameters
                self._followed[each.target] = each.network

    def gradient(self, trained: AnyOptimized, loss: TileLoss) -> CudaGradient:
        """Return what computes the gradient of a loss by the parameters of a network."""
        placed, end = self._placed((*loss.reads, trained.network))
        layers = chosen(rows := gradient_rows(end, loss.scratch, loss.terms))
        nets = [Packed(*each, layers) for each in placed]
        columns = tile_columns(layers, rows, self._batch_size, multiprocessors(trained.parameters.device))
        # Few blocks run at once, so their threads have all registers that they want.
        made = CudaGradient(nets, end, loss, layers, columns, most_rows=self._batch_size)
        self._sums[trained.network] = made.sums
        return made

    def adam(self, trained: AnyOptimized, optimizer: Adam, target: torch.Tensor | None) -> CudaAdam:
        """Return what moves the parameters of a network, and of its target network."""
        sums = self._sums.get(trained.network)
        return CudaAdam(optimizer, trained.parameters, trained.learning_rate.tensor, trained.max_norm, target, sums)

    def slope(self, loss: MeanLoss, parameter: torch.Tensor, mean: torch.Tensor, into: torch.Tensor) -> Callable[[], None]:
        """Return what writes the slope of a loss of one parameter, on tensors [1]."""
        module = module_for(f"{loss.slope.__name__}_cuda", fill(SLOPE, name=loss.slope.__name__), {"formula": loss.slope})
        return partial(launch, module, "slope", (1, 1), (on_device(parameter), on_device(mean), np.float32(loss.number), on_device(into)))

    def _placed(self, networks: tuple[nn.Module, ...]) -> tuple[list[Placed], int]:
        """Return networks with rows in the shared array, a target network those of the one that it follows, and the first row behind."""
        nets: list[Placed] = []
        firsts: dict[nn.Module, int] = {}
        end = 0
        for network in networks:
            table, outputs = stacked_rows(stacks(network), self._parameters[network])
            first = firsts.setdefault(self._followed.get(network, network), end)
            inputs, rows = table[0].n_in, table[-1].out_row + table[-1].n_out
            moved = [layer._replace(in_row=layer.in_row + first, out_row=layer.out_row + first) for layer in table]
            slopes = first if network is networks[-1] else first + rows
            nets.append(Placed(self._parameters[network], moved, outputs._replace(first=first + outputs.first), first, slopes))
            end = max(end, first + rows + inputs)
        return nets, end


def tile_columns(layers: Layers, rows: int, batch: int, multiprocessors: int) -> int:
    """Return the columns of a tile: as many as fit, but no more than give every multiprocessor a tile."""
    enough = -(-batch // (multiprocessors * layers.together)) * layers.together
    return min(layers.columns_for(rows, COLUMNS), max(enough, layers.together))
