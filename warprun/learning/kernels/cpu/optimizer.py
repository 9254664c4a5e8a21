"""Clipping, Adam and the average of a target network in one or two kernels (CPU): torch needs twenty operations for them.

The norm of the whole gradient comes first, so threads that share the parameters need a kernel for it and one for the rest.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
import torch

from warprun.kernels import ahead
from warprun.kernels.bound import Call, Function, kernel_module, signature
from warprun.kernels.compile import merged_function
from warprun.kernels.threads import Team, team
from warprun.learning import optimizers
from warprun.learning.kernels.cpu.loops.optimizer import LANES, PIECE, State, begin_step, end_step

SPLIT_FROM = 8
"""Pieces from which on several threads share them: fewer take a thread less time than handing over half of them."""


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
