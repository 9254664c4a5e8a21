"""Recurrent layers over whole sequences by kernels (CPU), their products and the gradients of their weights included."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import nn
from torch.autograd.function import FunctionCtx

from warprun.kernels import recurrent
from warprun.kernels.recurrent import BLOCKS, work_size
from warprun.kernels.vectors import NARROW
from warprun.learning.kernels.cpu.rows import TileKernels, filled, layers
from warprun.learning.kernels.recurrent import compute, parts_of
from warprun.learning.recurrent import Cell, Recurrent

FUNCTIONS = {
    "lstm": (recurrent.lstm_forward, recurrent.lstm_backward),
    "gru": (recurrent.gru_forward, recurrent.gru_backward),
}
"""By the type of a network."""


class CpuRecurrence:
    """The two kernels of one kind of layer; any thread may call them, each with memory of its own."""

    def __init__(self, kind: str) -> None:
        forward, backward = FUNCTIONS[kind]
        self.of_lstm = kind == "lstm"
        self.tiles = TileKernels(kind, forward, backward)

    def blocks(self, inputs: int, width: int) -> np.ndarray:
        """Return the table of `warprun.kernels.recurrent` for steps that see `width` numbers, of which `inputs` are inputs."""
        if self.of_lstm:
            return np.array([(gate, 0, width) for gate in range(BLOCKS)])
        return np.array([(0, 0, width), (1, 0, width), (2, 0, inputs), (2, inputs, width)])

    def bias(self, bias_ih: torch.Tensor, bias_hh: torch.Tensor) -> torch.Tensor:
        """Return the biases of all blocks, [4 U]."""
        both = bias_ih + bias_hh
        if self.of_lstm:
            return both
        shared = 2 * len(both) // 3
        return torch.cat((both[:shared], bias_ih[shared:], bias_hh[shared:]))

    def d_biases(self, d_bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of both biases from that of the biases of all blocks."""
        if self.of_lstm:
            return d_bias, d_bias
        shared, own, past = d_bias.split([len(d_bias) // 2, *[len(d_bias) // 4] * 2])
        return torch.cat((shared, own)), torch.cat((shared, past))


class Kept(FunctionCtx):
    """Numbers that a forward pass keeps for the backward pass."""

    kernels: CpuRecurrence
    inputs: int
    saved_tensors: tuple[torch.Tensor, ...]


class Layer(torch.autograd.Function):
    """One recurrent layer over T steps of B sequences, with the gradients of its inputs and parameters, but not of `first`."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Kept,
        kernels: CpuRecurrence,
        x: torch.Tensor,
        keeps: torch.Tensor,
        first: torch.Tensor,
        first_cell: torch.Tensor,
        weight_ih: torch.Tensor,
        weight_hh: torch.Tensor,
        bias_ih: torch.Tensor,
        bias_hh: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Return the outputs [T, B, U] of inputs [T, B, I], and of an LSTM the cells; `first`, `first_cell` [B, U], `keeps` [T, B]."""
        (steps, count), inputs, units = keeps.shape, x.shape[2], weight_hh.shape[1]
        weights = torch.cat((filled(weight_ih, -1), weight_hh), 1)
        width = weights.shape[1]
        by_gate = weights.view(-1, units, width).transpose(1, 2).contiguous()
        bias, blocks = kernels.bias(bias_ih, bias_hh).view(BLOCKS, units), kernels.blocks(width - units, width)
        rows = steps * count
        seen, gates, output = x.new_empty(rows * width), x.new_empty(rows * BLOCKS * units), x.new_empty(steps, count, units)
        extra = torch.empty_like(output) if kernels.of_lstm else output
        made = (seen, gates, output, extra, kernels.tiles.work(work_size(units, width)))
        kernels.tiles.run("forward", count, x.contiguous(), keeps, by_gate, bias, blocks, first, first_cell, *made)
        ctx.kernels, ctx.inputs = kernels, inputs
        ctx.save_for_backward(keeps, first_cell, weights, seen, gates, extra)
        if extra is output:
            return (output,)
        ctx.mark_non_differentiable(extra)
        return output, extra

    @staticmethod
    def backward(ctx: Kept, slope: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """Return the gradients of what `forward` takes."""
        keeps, first_cell, weights, seen, gates, extra = ctx.saved_tensors
        (steps, count, units), kernels, inputs = extra.shape, ctx.kernels, ctx.inputs
        width = weights.shape[1]
        d_x, d_weights, d_bias = extra.new_empty(steps, count, inputs), torch.zeros_like(weights), extra.new_zeros(BLOCKS, units)
        blocks = kernels.blocks(width - units, width)
        made = (d_x, d_weights, d_bias, kernels.tiles.work(work_size(units, width)))
        kernels.tiles.run("backward", count, slope.contiguous(), keeps, weights, blocks, first_cell, seen, gates, extra, *made)
        return None, d_x, None, None, None, d_weights[:, :inputs], d_weights[:, -units:], *kernels.d_biases(d_bias.flatten())


kernels_of = cache(CpuRecurrence)
"""The kernels of a type of network."""


def layer(cell: Cell, x: torch.Tensor, keeps: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the outputs [T, B, U] of a layer and the parts of its carry after each step, see `recurrent.LayerOverSteps`."""
    kind, *given = parts_of(cell, first)
    after = list(Layer.apply(kernels_of(kind), x, keeps.contiguous(), *given))  # type: ignore[no-untyped-call]
    return after[0], after


def compute_by_kernels(module: nn.Module) -> None:
    """Let kernels compute the networks with memory in `module` whose recurrent units fill vectors, instead of torch."""
    compute(module, layer, lambda kind, units: units % NARROW == 0)
    for network in module.modules():
        if isinstance(network, Recurrent) and network.over_steps:
            network.over_rows = layers
