"""The steps of recurrent layers in kernels (CPU); `learning.kernels.recurrent` has the products beside them."""

from __future__ import annotations

import threading
from functools import cache

import torch
from torch import nn

from warprun.kernels import recurrent
from warprun.kernels.bound import Call, kernel_module
from warprun.kernels.compile import merged_function
from warprun.kernels.simd import NARROW, aligned_zeros
from warprun.learning.kernels.recurrent import compute, over_steps
from warprun.learning.recurrent import Cell

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


class CpuRecurrence:
    """The two kernels of one kind of layer; any thread may call them, each with memory of its own."""

    def __init__(self, kind: str) -> None:
        forward, backward = FUNCTIONS[kind]
        self.kind = kind
        self.module = kernel_module(kind, {"forward": [forward], "backward": [backward]}, merged_function)
        self._zeros = aligned_zeros(recurrent.TILE)
        self._own = Own()

    def run(self, name: str, shape: torch.Size, *tensors: torch.Tensor) -> None:
        """Go through the steps of all tiles on this thread, see `Recurrence`."""
        own, (_, sequences, units) = self._own, shape
        if own.work.size < 8 * recurrent.TILE * units:
            own.work = aligned_zeros(8 * recurrent.TILE * units)
        arguments = (*(tensor.numpy() for tensor in tensors), own.work, self._zeros)
        call = own.calls.get(name)
        if call is None:
            call = own.calls[name] = Call(getattr(self.module, name), *arguments)
        call.change(**dict(zip(call.names, arguments, strict=True)))
        call.run(0, -(-sequences // recurrent.TILE), 0)


kernels_of = cache(CpuRecurrence)
"""The kernels of a type of network."""


def layer(cell: Cell, x: torch.Tensor, keeps: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the outputs [T, B, U] of a layer and the parts of its carry after each step, see `recurrent.LayerOverSteps`."""
    return over_steps(kernels_of, cell, x, keeps, first)


def compute_by_kernels(module: nn.Module) -> None:
    """Let kernels compute the recurrent layers of all networks in `module` whose units fill vectors, instead of torch."""
    compute(module, layer, lambda kind, units: units % NARROW == 0)
