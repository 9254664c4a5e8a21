"""Clipping, Adam and the average of a target network in one or two kernels (CPU): torch needs twenty operations for them.

The norm of the whole gradient comes first, so threads that share the parameters need a kernel for it and one for the rest.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from warprun.kernels import ahead
from warprun.kernels.bound import Call, Function, kernel_module, signature
from warprun.kernels.compile import merged_function
from warprun.kernels.threads import Team, team
from warprun.learning import optimizers
from warprun.learning.formulas import adam, between
from warprun.math import sqrt

PIECE = 4096
"""Parameters in a piece: each has its own sum of squares, so that threads do not change the norm."""
SPLIT_FROM = 8
"""Pieces from which on several threads share them: fewer take a thread less time than handing over half of them."""
LANES = 16
"""Sums of squares of a piece: the additions of a single one would wait for each other."""

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
    """[piece, LANES]: sums of the squares of a gradient."""
    norm: NDArray[np.float32]
    """[]: that of the gradient before clipping."""
    steps: NDArray[np.float64]
    """[1]."""
    learning_rate: NDArray[np.float64]
    """[]."""
    beta1: float
    beta2: float
    eps: float


def begin_step(first, last, gradient, state):
    """Sum the squares of pieces `first` .. `last` - 1 of `gradient` [P]; the first piece counts the step."""
    for piece in range(first, last):
        sums, part = state.partial_sums[piece], gradient[piece * PIECE : (piece + 1) * PIECE]
        sums[:] = float32(0.0)
        whole = part.size // LANES * LANES
        for m in range(0, whole, LANES):
            for lane in range(LANES):
                sums[lane] += part[m + lane] * part[m + lane]
        for m in range(whole, part.size):
            sums[0] += part[m] * part[m]
    if first == 0:
        state.steps[0] += 1.0


def end_step(first, last, gradient, state, max_norm, tau):
    """Clip these pieces of `gradient` in place, take an Adam step and move the target by `tau`; Kingma & Ba 2015, algorithm 1."""
    total = float32(0.0)
    for piece in range(state.partial_sums.shape[0]):
        for lane in range(LANES):
            total += state.partial_sums[piece, lane]
    norm = sqrt(total)
    if first == 0:
        state.norm[()] = norm
    scale = min(float32(1.0), float32(max_norm) / (norm + float32(1e-6)))
    correction1 = np.float64(1.0) - np.float64(state.beta1) ** state.steps[0]
    correction2 = np.float64(1.0) - np.float64(state.beta2) ** state.steps[0]
    step, square_scale = float32(state.learning_rate[()] / correction1), float32(1.0 / correction2)
    keep1, keep2, beta2 = float32(1.0 - state.beta1), float32(1.0 - state.beta2), float32(state.beta2)
    eps, target_step = float32(state.eps), float32(tau)
    begin, end = first * PIECE, last * PIECE
    slope, mean, square = gradient[begin:end], state.mean[begin:end], state.square[begin:end]
    parameters, target = state.parameters[begin:end], state.target[begin:end]
    for m in range(slope.size):
        slope[m] *= scale
        mean[m], square[m], change = adam(slope[m], mean[m], square[m], keep1, beta2, keep2, step, square_scale, eps)
        parameters[m] -= change
    for m in range(target.size):
        target[m] = between(target[m], parameters[m], target_step)


@cache
def _module() -> ModuleType:
    made_of: dict[str, list[Function]] = {"whole": [begin_step, end_step], "begin": [begin_step], "end": [end_step]}
    return kernel_module("optimizer", made_of, merged_function)


def split(parameters: int, threads: int) -> tuple[Team, int]:
    """Return the team that shares the pieces of so many parameters, and the number of pieces."""
    pieces = -(-parameters // PIECE)
    return team(threads if pieces >= SPLIT_FROM else 1), pieces


class CpuAdam:
    """Applies gradients by kernels: the same as `optimizers.clip_norm` and `optimizers.Adam` in torch."""

    def __init__(
        self,
        optimizer: optimizers.Adam,
        parameters: torch.Tensor,
        learning_rate: torch.Tensor,
        max_norm: float | None,
        target: torch.Tensor | None = None,
        threads: int = 1,
    ) -> None:
        """`parameters` [P] and `target` [P] are moved in place; `learning_rate` [] float64 is read in every step."""
        self._team, self._pieces = split(len(parameters), threads)
        self.norm = torch.zeros(())
        """[]: norm of the last gradient before clipping."""
        config = optimizer.config
        self._state = State(
            parameters=parameters.numpy(),
            target=np.zeros(0, np.float32) if target is None else target.numpy(),
            mean=optimizer.mean.numpy(),
            square=optimizer.square.numpy(),
            partial_sums=np.zeros((self._pieces, LANES), np.float32),
            norm=self.norm.numpy(),
            steps=optimizer.steps.view(1).numpy(),
            learning_rate=learning_rate.numpy(),
            beta1=config.beta1,
            beta2=config.beta2,
            eps=config.eps,
        )
        self._max_norm = float(np.inf if max_norm is None else max_norm)
        self._names = ("whole",) if self._team.count == 1 else ("begin", "end")
        given = optimizer.mean.numpy(), self._state, self._max_norm, 0.0
        self._calls = [Call(getattr(_module(), name), *(given[:2] if name == "begin" else given)) for name in self._names]
        """Any array [P] stands for the gradient until the first step."""
        self._place = 0
        """Address of the gradient that `_calls` have."""

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        for name, call in zip(self._names, self._calls, strict=True):
            ahead.want(_module(), name, signature(call.arguments))

    def step(self, gradient: torch.Tensor, tau: float = 0.0) -> torch.Tensor:
        """Clip `gradient` [P] in place, move the parameters against it and the target by `tau` to them.

        Return the norm before clipping, [], which the next call overwrites. Raises ValueError for a gradient of another length.
        """
        if len(gradient) != len(self._state.parameters):
            raise ValueError(f"a gradient of {len(gradient)} numbers for {len(self._state.parameters)} parameters")
        place = gradient.data_ptr()
        if place != self._place:
            for call in self._calls:
                call.change(gradient=gradient.numpy())
            self._place = place
        self._calls[-1].change(tau=tau)
        if self._team.count == 1:
            self._calls[0](0, self._pieces, 0)
        else:
            for call in self._calls:
                self._team.share(call, self._pieces)
        return self.norm
