"""The interface between an engine and the kernels of a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import torch

from warprun.kernels.mlp import Network

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
