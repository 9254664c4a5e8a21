"""Recurrent layers by kernels: what CPU and CUDA share, and the layer whose large products torch computes, that of CUDA.

There a kernel goes through the steps alone. The inputs of all steps are multiplied at once before it. For the gradients a kernel gives
the slopes of the gates at all steps, and then a product those of the inputs. Another kernel computes the gradients of the weights, or torch
by two products. torch is fast where matrices have as many rows as all steps together; on a CPU they would leave the cache
(`learning.kernels.cpu.recurrent`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
from torch import nn
from torch.autograd.function import FunctionCtx

from warprun.learning.recurrent import Cell, LayerOverSteps, Recurrent

Gradients: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Of the weights of the inputs, of those of what is remembered, and of their biases."""


class Recurrence(Protocol):
    """The kernels of one kind of layer, of G gates a unit; torch computes the products of inputs, and their slopes."""

    kind: str
    """Type of the network: lstm or gru."""

    def weights(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights [G U, U] of what is remembered, in the order in which each of the two passes reads them."""

    def run(self, name: str, shape: torch.Size, *tensors: torch.Tensor) -> None:
        """Go through T steps of B sequences of U units, `shape` [T, B, U], "forward" or "backward".

        `tensors` are contiguous float32, in the order of the calls in `Layer`:

            gates    [T, B, G U]  the inputs' part of the gates, which the forward pass replaces by their values
            keeps    [T, B]       0 where a sequence begins anew with a step, else 1
            before   [T, B, U]    what a step remembers of the outputs before it
            extra    [T, B, U]    LSTM: the cells after each step; GRU: the past's part of the new gate
        """

    def gradients(self, x: torch.Tensor, before: torch.Tensor, d_own: torch.Tensor, d_past: torch.Tensor) -> Gradients:
        """Return the gradients of the parameters for the slopes of the gates [R, G U] in all steps of all sequences, R = T B.

        `x` [R, I] are the inputs, `before` [R, U] what was remembered.
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
        weights, weights_back = kernels.weights(weight_hh)
        given = (gates, keeps, weights, bias_hh, first, first_cell, before, output, extra)
        kernels.run("forward", before.shape, *(tensor.detach() for tensor in given))
        ctx.kernels = kernels
        ctx.save_for_backward(x, keeps, first, first_cell, weight_ih, weights_back, gates, before, extra)
        ctx.mark_non_differentiable(extra)
        return output, extra

    @staticmethod
    def backward(ctx: Kept, slope: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """Return the gradients of what `forward` takes."""
        x, keeps, first, first_cell, weight_ih, weights, gates, before, extra = ctx.saved_tensors
        d_own = torch.empty_like(gates)
        d_past = d_own if ctx.kernels.kind == "lstm" else torch.empty_like(gates)
        given = (slope.contiguous(), gates, keeps, weights, first, first_cell, before, extra, d_own, d_past)
        ctx.kernels.run("backward", before.shape, *(tensor.detach() for tensor in given))
        own, past = d_own.flatten(0, 1), d_past.flatten(0, 1)
        d_x = (own @ weight_ih).view_as(x) if ctx.needs_input_grad[1] else None
        return None, d_x, None, None, None, *ctx.kernels.gradients(x.flatten(0, 1), before.flatten(0, 1), own, past)


def gradients(x: torch.Tensor, before: torch.Tensor, d_own: torch.Tensor, d_past: torch.Tensor) -> Gradients:
    """Return what `Recurrence.gradients` does, by torch."""
    own_bias = d_own.sum(0)
    past_bias = own_bias if d_past.data_ptr() == d_own.data_ptr() else d_past.sum(0)
    return d_own.T @ x, d_past.T @ before, own_bias, past_bias


def over_steps(
    kernels_of: Callable[[str], Recurrence], cell: Cell, x: torch.Tensor, keeps: torch.Tensor, first: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the outputs [T, B, U] of a layer and the parts of its carry after each step, see `recurrent.LayerOverSteps`.

    `kernels_of` returns the kernels of a type of network.
    """
    kind, *given = parts_of(cell, first)
    output, extra = Layer.apply(kernels_of(kind), x, keeps.contiguous(), *given)  # type: ignore[no-untyped-call]
    return output, [output, extra] if kind == "lstm" else [output]


def parts_of(cell: Cell, first: torch.Tensor) -> tuple[str, *tuple[torch.Tensor, ...]]:
    """Return the type of a layer, the parts of its carry `first`, outputs and cells (GRU: outputs twice), and its four parameters."""
    outputs, *cells = (part.contiguous() for part in first.split(cell.hidden_size, -1))
    kind = "lstm" if isinstance(cell, nn.LSTMCell) else "gru"
    return kind, outputs, cells[0] if cells else outputs, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh


def compute(module: nn.Module, layer: LayerOverSteps, fits: Callable[[str, int], bool]) -> None:
    """Let `layer` compute the recurrent layers of those networks in `module` of which each fits, by type and units, instead of torch."""
    for network in module.modules():
        if isinstance(network, Recurrent) and all(fits(network.kind, units) for units in network.units):
            network.over_steps = layer
