"""Single steps on a CUDA GPU, or in the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType

import numpy as np
import torch

from warprun.environment import Box
from warprun.simulation import memory as store
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.expressions import choices_of
from warprun.simulation.cuda_launch import Launcher, on_device
from warprun.simulation.steps import Array, KernelArguments, Step


class CudaSteps:
    """A `StepBackend` whose kernels are launched on torch's current stream."""

    def __init__(self, module: ModuleType, plan: ArrayPlan, arrays: store.Arrays, scalars: Mapping[str, object]) -> None:
        self._launcher = Launcher(module, plan)
        device = arrays.common["began"].device
        self._counts = [
            None if isinstance(group.action, Box) else torch.tensor([count for _, count in choices_of(group.action)], device=device)
            for group in plan.environment.groups
        ]
        """Of each group the numbers of choices; None if actions are real numbers."""
        self._arguments = KernelArguments(module, plan, arrays, scalars, on_device)

    def seed(self, words: Mapping[str, np.uint32]) -> None:
        self._arguments.change(words)

    def prepare(self, step: Step) -> None:
        """Compile the kernels."""
        bound = self.bind(step)
        self.reset(0, bound)
        self.advance(0, bound)

    def bind(self, step: Step) -> list[object]:
        return self._arguments.of(step)

    def take(self, number: int, given: Array, action: Array) -> bool:
        assert isinstance(given, torch.Tensor) and isinstance(action, torch.Tensor)
        action.copy_(given)
        counts = self._counts[number]
        if counts is None:
            return True
        choices = given.view(-1, len(counts))
        return bool(((choices >= 0) & (choices < counts)).all())

    def reset(self, now: int, bound: Sequence[object]) -> None:
        self._launch("reset", now, bound)

    def advance(self, now: int, bound: Sequence[object]) -> bool:
        self._launch("advance", now, bound)
        return True

    def _launch(self, kernel: str, now: int, bound: Sequence[object]) -> None:
        self._launcher.each(kernel, (0, np.uint32(now & 0xFFFFFFFF), *bound))
