"""Recurrent layers over whole sequences: kernels go through the steps, torch computes the large products beside them.

torch's own cells take some thirty small operations for each step forward, and twice as many backward. Here the inputs of all steps are
multiplied at once, a kernel goes through the steps, and so for the gradients: a kernel gives the slopes of the gates at all steps, then
three products of torch those of the inputs and of the weights. torch is fast where matrices have as many rows as all steps together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn
from torch.autograd.function import FunctionCtx

from warprun.learning.recurrent import Cell, LayerOverSteps, Recurrent


class Recurrence(Protocol):
    """The two kernels of one kind of layer on a device."""

    kind: str
    """Type of the network: lstm or gru."""

    def run(self, name: str, shape: torch.Size, *tensors: torch.Tensor) -> None:
        """Go through T steps of B sequences of U units, `shape` [T, B, U], "forward" or "backward".

        `tensors` are contiguous float32, in the order of the arguments in `warprun.kernels.recurrent`.
        """


class Kept(FunctionCtx):
    """Numbers that a forward pass keeps for the backward pass."""

    kernels: Recurrence
    saved_tensors: tuple[torch.Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class Layer(torch.autograd.Function):
    """One recurrent layer over T steps of B sequences, with the gradients of its inputs and parameters, but not of `first`."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Kept,
        kernels: Recurrence,
        x: torch.Tensor,
        keeps: torch.Tensor,
        first: torch.Tensor,
        first_cell: torch.Tensor,
        weight_ih: torch.Tensor,
        weight_hh: torch.Tensor,
        bias_ih: torch.Tensor,
        bias_hh: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs [T, B, U] of inputs [T, B, I], and of an LSTM the cells; `first`, `first_cell` [B, U], `keeps` [T, B]."""
        (steps, count), units = keeps.shape, weight_hh.shape[1]
        x = x.contiguous()
        gates = torch.addmm(bias_ih, x.view(steps * count, -1), weight_ih.T).view(steps, count, -1)
        before, output, extra = x.new_empty(3, steps, count, units).unbind()
        given = (gates, keeps, weight_hh.T.contiguous(), bias_hh, first, first_cell, before, output, extra)
        kernels.run("forward", before.shape, *(tensor.detach() for tensor in given))
        ctx.kernels = kernels
        ctx.save_for_backward(x, keeps, first, first_cell, weight_ih, weight_hh, gates, before, extra)
        ctx.mark_non_differentiable(extra)
        return output, extra

    @staticmethod
    def backward(ctx: Kept, slope: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """Return the gradients of what `forward` takes."""
        x, keeps, first, first_cell, weight_ih, weight_hh, gates, before, extra = ctx.saved_tensors
        d_own = torch.empty_like(gates)
        d_past = d_own if ctx.kernels.kind == "lstm" else torch.empty_like(gates)
        given = (slope.contiguous(), gates, keeps, weight_hh, first, first_cell, before, extra, d_own, d_past)
        ctx.kernels.run("backward", before.shape, *(tensor.detach() for tensor in given))
        own, past = d_own.flatten(0, 1), d_past.flatten(0, 1)
        d_x = (own @ weight_ih).view_as(x) if ctx.needs_input_grad[1] else None
        own_bias = own.sum(0)
        past_bias = own_bias if d_past is d_own else past.sum(0)
        return None, d_x, None, None, None, own.T @ x.flatten(0, 1), past.T @ before.flatten(0, 1), own_bias, past_bias


def over_steps(
    kernels_of: Callable[[str], Recurrence], cell: Cell, x: torch.Tensor, keeps: torch.Tensor, first: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the outputs [T, B, U] of a layer and the parts of its carry after each step, see `recurrent.LayerOverSteps`.

    `kernels_of` returns the kernels of a type of network.
    """
    of_lstm = isinstance(cell, nn.LSTMCell)
    outputs, *cells = (part.contiguous() for part in first.split(cell.hidden_size, -1))
    parameters = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
    output, extra = Layer.apply(  # type: ignore[no-untyped-call]
        kernels_of("lstm" if of_lstm else "gru"), x, keeps.contiguous(), outputs, cells[0] if of_lstm else outputs, *parameters
    )
    return output, [output, extra] if of_lstm else [output]


def compute(module: nn.Module, layer: LayerOverSteps, fits: Callable[[str, int], bool]) -> None:
    """Let `layer` compute the recurrent layers of those networks in `module` of which each fits, by type and units, instead of torch."""
    for network in module.modules():
        if isinstance(network, Recurrent) and all(fits(network.kind, units) for units in network.units):
            network.over_steps = layer
