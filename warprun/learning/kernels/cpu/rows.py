"""Linear layers with their activations on rows [..., I] by kernels (CPU), and the calls of kernels that many threads share."""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import torch
from torch import nn
from torch.autograd.function import FunctionCtx

from warprun.kernels import rows
from warprun.kernels.bound import Call, Function, kernel_module
from warprun.kernels.compile import merged_function
from warprun.kernels.mlp import LINEAR
from warprun.kernels.simd import aligned_zeros
from warprun.kernels.vectors import NARROW
from warprun.learning.kernels.layers import CODES


class Own(threading.local):
    """Memory and calls of one thread."""

    def __init__(self) -> None:
        self.work = aligned_zeros(0)
        self.calls: dict[str, Call] = {}
        """By the name of the kernel."""


class TileKernels:
    """Kernels over tiles of `TILE` rows or sequences; any thread may call them, each with memory of its own."""

    def __init__(self, name: str, forward: Function, backward: Function) -> None:
        self.module = kernel_module(name, {"forward": [forward], "backward": [backward]}, merged_function)
        self._own = Own()

    def work(self, size: int) -> np.ndarray:
        """Return memory of this thread, `size` numbers or more."""
        if self._own.work.size < size:
            self._own.work = aligned_zeros(size)
        return self._own.work

    def run(self, name: str, count: int, *arguments: torch.Tensor | np.ndarray | int) -> None:
        """Call "forward" or "backward" for all tiles of `count` rows or sequences on this thread."""
        calls = self._own.calls
        given = tuple(each.detach().numpy() if isinstance(each, torch.Tensor) else each for each in arguments)
        call = calls.get(name)
        if call is None:
            call = calls[name] = Call(getattr(self.module, name), *given)
        call.change(**dict(zip(call.names, given, strict=True)))
        call.run(0, -(-count // rows.TILE), 0)


@cache
def linear_kernels() -> TileKernels:
    """Return the kernels of linear layers."""
    return TileKernels("linear", rows.linear_forward, rows.linear_backward)


class Kept(FunctionCtx):
    """Numbers that a forward pass keeps for the backward pass."""

    code: int
    saved_tensors: tuple[torch.Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class Linear(torch.autograd.Function):
    """A linear layer and its activation."""

    @staticmethod
    def forward(ctx: Kept, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, code: int) -> torch.Tensor:  # type: ignore[override]
        """Return the outputs [R, O] of rows [R, I], `code` as in `kernels.mlp`; I and O are multiples of NARROW."""
        y, table = x.new_empty(len(x), len(bias)), np.array([(0, 0, x.shape[1])])
        linear_kernels().run("forward", len(x), x, weight.T[None].contiguous(), bias[None], table, code, y)
        ctx.code = code
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx: Kept, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """Return the gradients of what `forward` takes."""
        x, weight, y = ctx.saved_tensors
        d_x = torch.empty_like(x) if ctx.needs_input_grad[0] else x.new_empty(0, 0)
        d_weight, d_bias, table = torch.zeros_like(weight), x.new_zeros(1, len(weight)), np.array([(0, 0, x.shape[1])])
        kernels = linear_kernels()
        made = d_x, d_weight, d_bias, kernels.work(rows.TILE * len(weight))
        kernels.run("backward", len(x), slope.contiguous(), x, weight, table, ctx.code, y, *made)
        return d_x if ctx.needs_input_grad[0] else None, d_weight, d_bias[0], None


def filled(tensor: torch.Tensor, *axes: int) -> torch.Tensor:
    """Return `tensor` with zeros behind its last axis, or its last ones, so that each is a multiple of NARROW."""
    more = [amount for axis in axes for amount in (0, -tensor.shape[axis] % NARROW)]
    return nn.functional.pad(tensor, more) if any(more) else tensor


def layers(parts: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    """Return what the parts of a network give for `x` [..., I]: kernels compute linear layers, tanh and relu, torch all else."""
    waiting = list(parts)
    while waiting:
        part = waiting.pop(0)
        if not isinstance(part, nn.Linear):
            x = part(x)
            continue
        code = CODES.get(type(waiting[0]), LINEAR) if waiting else LINEAR
        if code != LINEAR:
            waiting.pop(0)
        given = filled(x.flatten(0, -2), -1).contiguous(), filled(part.weight, -1, -2), filled(part.bias, -1)
        y: torch.Tensor = Linear.apply(*given, code)  # type: ignore[no-untyped-call]
        x = y[:, : part.out_features].unflatten(0, x.shape[:-1])
    return x
