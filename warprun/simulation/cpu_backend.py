"""Run kernels on CPU threads."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from warprun.environment import Environment
from warprun.kernels.mlp import Network
from warprun.kernels.simd import COLUMNS, NARROW
from warprun.kernels.threads import threads
from warprun.simulation.trajectory import Trajectory


class CpuKernels:
    """The kernels of a module with their arrays bound; each call runs one over all environments."""

    def __init__(self, module: ModuleType, names: tuple[str, ...], values: dict[str, Any], count: int) -> None:
        self._module = module
        self._threads = threads(count)
        self._n_envs = values["n_envs"]
        self._tiles = -(-self._n_envs // module.LANES)
        self._fixed = tuple(v.numpy() if isinstance(v, torch.Tensor) else v for v in (values[name] for name in names[2:]))

    def begin(self, now: int) -> None:
        """Do nothing: every call is told the time."""

    def __call__(self, kernel: str, row: int, now: int) -> None:
        """Run `kernel` on row `row` of the trajectory; `now` counts the steps since the run began, modulo 2^32."""
        function, clock = getattr(self._module, kernel), np.uint32(now & 0xFFFFFFFF)
        self._threads.share(lambda begin, end, _: function(begin, end, row, clock, *self._fixed), self._tiles)

    def rollout(self, steps: int, greedy: bool, now: int, fused: tuple[Any, ...]) -> None:
        """Run `steps` steps from row 0 in one kernel; `fused` is what `fused_arrays` made."""
        function, clock = self._module.rollout, np.uint32(now & 0xFFFFFFFF)
        self._threads.share(lambda begin, end, n: function(begin, end, n, steps, greedy, 0, clock, *self._fixed, *fused), self._tiles)

    def retrace(self, steps: int, now: int) -> None:
        """Run `steps` steps from row 0 with the actions that are there, in one kernel."""
        function, clock = self._module.retrace, np.uint32(now & 0xFFFFFFFF)
        self._threads.share(lambda begin, end, _: function(begin, end, steps, 0, clock, *self._fixed), self._tiles)

    def fused_arrays(self, environment: Environment, networks: Mapping[str, Network], taken: Trajectory) -> tuple[Any, ...]:
        """Return each group's network, values and the memory for one block of activations and the policy outputs of a tile, per thread."""
        arrays: list[Any] = []
        width = self._module.LANES
        for group in environment.groups:
            network = networks[group.name]
            # Columns that stay empty cost as much as others.
            few = self._n_envs <= NARROW < width or width * group.size <= NARROW
            columns = NARROW if few else COLUMNS
            together = max(1, columns // width)
            actors = -(-group.size // together) * together
            block = np.zeros((self._threads.count, network.rows, columns), np.float32)
            logits = np.zeros((self._threads.count, group.action.outputs, actors, width), np.float32)
            arrays += [network, taken.groups[group.name].value.flatten(1).numpy(), block, logits]
        return tuple(arrays)
