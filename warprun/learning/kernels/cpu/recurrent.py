"""Recurrent layers over whole sequences (CPU): kernels compute the recurrence, torch the large products beside it.

torch's own cells take some thirty small operations for each step forward, and twice as many backward. Here the inputs of
all steps are multiplied at once, a kernel goes through the steps (`warprun.kernels.recurrent`), and so are the gradients.
"""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import torch
from torch import nn
from torch.autograd.function import FunctionCtx

from warprun.kernels import recurrent
from warprun.kernels.bound import Call, kernel_module
from warprun.kernels.compile import merged_function
from warprun.kernels.simd import NARROW, aligned_zeros
from warprun.learning.recurrent import Cell, Recurrent

FUNCTIONS = {
    "lstm": (recurrent.lstm_forward, recurrent.lstm_backward),
    "gru": (recurrent.gru_forward, recurrent.gru_backward),
}
"""By the type of a network."""


class Own(threading.local):
    """Memory and calls of one thread."""

    def __init__(self) -> None:
        self.work = aligned_zeros(0)
        self.calls: dict[str, Call] = {}
        """By the name of the kernel."""


class Kernels:
    """The two kernels of one kind of layer; any thread may call them, each with memory of its own."""

    def __init__(self, kind: str) -> None:
        forward, backward = FUNCTIONS[kind]
        self.module = kernel_module(kind, {"forward": [forward], "backward": [backward]}, merged_function)
        self._zeros = aligned_zeros(recurrent.TILE)
        self._own = Own()

    def run(self, name: str, sequences: int, units: int, *arrays: np.ndarray) -> None:
        """Call the kernel `name` for all tiles of as many sequences, on this thread."""
        own = self._own
        if own.work.size < 8 * recurrent.TILE * units:
            own.work = aligned_zeros(8 * recurrent.TILE * units)
        arguments = (*arrays, own.work, self._zeros)
        call = own.calls.get(name)
        if call is None:
            call = own.calls[name] = Call(getattr(self.module, name), *arguments)
        call.change(**dict(zip(call.names, arguments, strict=True)))
        call.run(0, -(-sequences // recurrent.TILE), 0)


kernels_of = cache(Kernels)
"""The kernels of a type of network."""


class Kept(FunctionCtx):
    """Numbers that a forward pass keeps for the backward pass."""

    kind: str
    saved_tensors: tuple[torch.Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class Layer(torch.autograd.Function):
    """One recurrent layer over T steps of B sequences, with the gradients of its inputs and parameters, but not of `first`."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Kept,
        kind: str,
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
        kernels_of(kind).run("forward", count, units, *(tensor.detach().numpy() for tensor in given))
        ctx.kind = kind
        ctx.save_for_backward(x, keeps, first, first_cell, weight_ih, weight_hh, gates, before, extra)
        ctx.mark_non_differentiable(extra)
        return output, extra

    @staticmethod
    def backward(ctx: Kept, slope: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """Return the gradients of what `forward` takes."""
        x, keeps, first, first_cell, weight_ih, weight_hh, gates, before, extra = ctx.saved_tensors
        count, units = keeps.shape[1], weight_hh.shape[1]
        d_own = torch.empty_like(gates)
        d_past = d_own if ctx.kind == "lstm" else torch.empty_like(gates)
        given = (slope.contiguous(), gates, keeps, weight_hh, first, first_cell, before, extra, d_own, d_past)
        kernels_of(ctx.kind).run("backward", count, units, *(tensor.detach().numpy() for tensor in given))
        own, past = d_own.flatten(0, 1), d_past.flatten(0, 1)
        d_x = (own @ weight_ih).view_as(x) if ctx.needs_input_grad[1] else None
        own_bias = own.sum(0)
        past_bias = own_bias if ctx.kind == "lstm" else past.sum(0)
        return None, d_x, None, None, None, own.T @ x.flatten(0, 1), past.T @ before.flatten(0, 1), own_bias, past_bias


def layer(cell: Cell, x: torch.Tensor, keeps: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the outputs [T, B, U] of a layer and the parts of its carry after each step, see `recurrent.LayerOverSteps`."""
    of_lstm = isinstance(cell, nn.LSTMCell)
    outputs, *cells = (part.contiguous() for part in first.split(cell.hidden_size, -1))
    parameters = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
    output, extra = Layer.apply(  # type: ignore[no-untyped-call]
        "lstm" if of_lstm else "gru", x, keeps.contiguous(), outputs, cells[0] if of_lstm else outputs, *parameters
    )
    return output, [output, extra] if of_lstm else [output]


def compute_by_kernels(module: nn.Module) -> None:
    """Let kernels compute the recurrent layers of all networks in `module` whose units fit them, instead of torch."""
    for network in module.modules():
        if isinstance(network, Recurrent) and all(units % NARROW == 0 for units in network.units):
            network.over_steps = layer
