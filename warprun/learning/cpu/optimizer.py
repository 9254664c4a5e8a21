"""Clipping, Adam and the average of a target network in one kernel (CPU): torch needs twenty operations for them."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from warprun.kernels import ahead
from warprun.kernels import compile as kernels
from warprun.kernels.bound import Call, signature
from warprun.learning import optimizers
from warprun.learning.adam import adam
from warprun.math import sqrt

GRADIENT_ARGUMENT, TAU_ARGUMENT = 0, 3
"""Numbers of the arguments of the kernel, after the three of every call, that change."""

float32 = np.float32


class State(NamedTuple):
    """The tensors of Adam as arrays, and its settings."""

    parameters: NDArray[np.float32]
    """[P]."""
    target: NDArray[np.float32]
    """[P], or [0] without a target network."""
    mean: NDArray[np.float32]
    square: NDArray[np.float32]
    partial_sums: NDArray[np.float32]
    """[16]: sums of the squares of a gradient."""
    norm: NDArray[np.float32]
    """[]: that of the gradient before clipping."""
    steps: NDArray[np.float64]
    """[1]."""
    learning_rate: NDArray[np.float64]
    """[]."""
    beta1: float
    beta2: float
    eps: float


def adam_step(gradient, state, max_norm, tau):
    """Clip `gradient` [P] in place, take an Adam step and move the target by `tau`; Kingma & Ba 2015, algorithm 1."""
    # Sixteen partial sums: the additions of a single sum would wait for each other.
    partial_sums = state.partial_sums
    partial_sums[:] = float32(0.0)
    whole = gradient.size // 16 * 16
    for m in range(0, whole, 16):
        for lane in range(16):
            partial_sums[lane] += gradient[m + lane] * gradient[m + lane]
    for m in range(whole, gradient.size):
        partial_sums[0] += gradient[m] * gradient[m]
    norm = sqrt(float32(np.sum(partial_sums)))
    state.norm[()] = norm
    scale = min(float32(1.0), float32(max_norm) / (norm + float32(1e-6)))
    state.steps[0] += 1.0
    correction1 = np.float64(1.0) - np.float64(state.beta1) ** state.steps[0]
    correction2 = np.float64(1.0) - np.float64(state.beta2) ** state.steps[0]
    step, square_scale = float32(state.learning_rate[()] / correction1), float32(1.0 / correction2)
    keep1, keep2, beta2 = float32(1.0 - state.beta1), float32(1.0 - state.beta2), float32(state.beta2)
    eps, target_step = float32(state.eps), float32(tau)
    parameters, target, mean, square = state.parameters, state.target, state.mean, state.square
    for m in range(gradient.size):
        gradient[m] *= scale
        mean[m], square[m], change = adam(gradient[m], mean[m], square[m], keep1, beta2, keep2, step, square_scale, eps)
        parameters[m] -= change
    for m in range(target.size):
        target[m] += target_step * (parameters[m] - target[m])


SOURCE = '''"""Clipping, Adam and target networks; written by warprun."""

from numba import njit


@njit(cache=True, **BOUND)
def adam(first, last, thread, gradient, state, max_norm, tau):
    adam_step(gradient, state, max_norm, tau)
'''


@cache
def _module() -> ModuleType:
    return kernels.load_module("optimizer", SOURCE, {"adam_step": adam_step, "BOUND": kernels.BOUND}, kernels.merged_function)


class FusedAdam:
    """Applies gradients by a kernel: the same as `optimizers.clip_norm` and `optimizers.Adam` in torch."""

    def __init__(
        self,
        optimizer: optimizers.Adam,
        parameters: torch.Tensor,
        learning_rate: torch.Tensor,
        max_norm: float | None,
        target: torch.Tensor | None = None,
    ) -> None:
        """`parameters` [P] and `target` [P] are moved in place; `learning_rate` [] float64 is read in every step."""
        self.norm = torch.zeros(())
        """[]: norm of the last gradient before clipping."""
        config = optimizer.config
        self._state = State(
            parameters=parameters.numpy(),
            target=np.zeros(0, np.float32) if target is None else target.numpy(),
            mean=optimizer.mean.numpy(),
            square=optimizer.square.numpy(),
            partial_sums=np.zeros(16, np.float32),
            norm=self.norm.numpy(),
            steps=optimizer.steps.view(1).numpy(),
            learning_rate=learning_rate.numpy(),
            beta1=config.beta1,
            beta2=config.beta2,
            eps=config.eps,
        )
        self._max_norm = float(np.inf if max_norm is None else max_norm)
        self._call = Call(_module().adam, optimizer.mean.numpy(), self._state, self._max_norm, 0.0)
        """Any array [P] stands for the gradient until the first step."""
        self._place = 0
        """Address of the gradient that `_call` has."""

    def compile_ahead(self) -> None:
        """Let another process compile the kernel (`kernels.ahead`)."""
        ahead.want(_module(), "adam", signature(self._call.arguments))

    def step(self, gradient: torch.Tensor, tau: float = 0.0) -> torch.Tensor:
        """Clip `gradient` [P] in place, move the parameters against it and the target by `tau` to them.

        Return the norm before clipping, [], which the next call overwrites.
        """
        place = gradient.data_ptr()
        if place != self._place:
            self._call.change(GRADIENT_ARGUMENT, gradient.numpy())
            self._place = place
        self._call.change(TAU_ARGUMENT, tau)
        self._call(0, 1, 0)
        return self.norm
