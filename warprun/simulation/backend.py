"""The interfaces between engines and the kernels of a device (`cpu.py`, `cuda.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
import torch

from warprun.kernels.mlp import Network
from warprun.simulation.memory import Array, Step

Kernel = Literal["reset", "sample", "greedy", "step"]


class KernelBackend(Protocol):
    """The kernels of a module with their arrays bound.

    Time counts from the array `began`, which the engine writes: the launches of two rollouts are then the same, as CUDA graphs need it.
    """

    def run(self, kernel: Kernel, row: int, offset: int) -> None:
        """Run a kernel over all environments, on row `row` of the trajectory, `offset` steps after `began`."""

    def fuse(self, networks: Mapping[str, Network], activations: Mapping[str, torch.Tensor]) -> None:
        """Prepare `rollout` with these networks, one for each group, which must fit (`kernel_engine.fits_shared_memory`).

        A rollout fills `activations` (`Trajectory.activations`), which only kernels on CPU do.
        """

    def rollout(self, steps: int, greedy: bool) -> None:
        """Run `steps` steps from row 0 and `began` on, with actions of the networks of `fuse`: sampled or the best ones."""

    def retrace(self, steps: int) -> None:
        """Run `steps` steps from row 0 and `began` on, with the actions that are in the trajectory."""


class StepBackend(Protocol):
    """The kernels `reset` and `advance` of a module, for callers with actions of their own."""

    def prepare(self, step: Step) -> None:
        """Compile the kernels or load them from the cache; leaves any state."""

    def seed(self, words: Mapping[str, np.uint32]) -> None:
        """Draw random numbers with another seed from now on. Arguments that were bound before keep the old one."""

    def bind(self, step: Step) -> Sequence[object]:
        """Return the arguments of the kernels for the arrays of a step."""

    def take(self, number: int, given: Array, action: Array) -> bool:
        """Copy actions of a caller for group `number`, both arrays flat; return False if some do not exist, which then must not be used."""

    def reset(self, now: int, bound: Sequence[object]) -> None:
        """Begin an episode in every environment with the random numbers of step `now`; write `obs` and `mask`."""

    def advance(self, now: int, bound: Sequence[object]) -> bool:
        """Take step `now`, and begin the next episode where one ends; return False if the host knows that none has ended."""
