"""Run kernels on a CUDA GPU or in the simulator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import cuda

from warprun.environment import Environment
from warprun.kernels.mlp import Network
from warprun.kernels.mlp_cuda import block_network, columns_for
from warprun.simulation.trajectory import Trajectory

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
THREADS_PER_BLOCK = 128
"""For one thread per environment: four warps, enough to hide latency with several blocks on a multiprocessor."""
ENVIRONMENTS_PER_BLOCK = 32
"""Of a fused rollout with one thread per environment: small blocks, so that 10,000 environments reach every multiprocessor."""
THREADS_PER_ROLLOUT = (64, 128)
"""Least and most threads of a block in a fused rollout: 64 outputs of 32 columns are 64 threads' work (`mlp_cuda`)."""


class FusedArrays(NamedTuple):
    """What a fused rollout is launched with."""

    packed: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    """Of each group: parameters, which of them stand where, and the weights that they become before every rollout."""
    grid: tuple[int, int]
    shared_bytes: int
    arguments: tuple[Any, ...]


class CudaKernels:
    """The kernels of a module with their arrays bound; each call launches one on torch's current stream."""

    def __init__(self, module: ModuleType, names: tuple[str, ...], values: dict[str, Any], environment: Environment, n_envs: int) -> None:
        self._module = module
        self._n_envs = n_envs
        self._began: torch.Tensor = values["began"]
        self._began_at = 0
        """The number in `_began`, which the host would have to wait for."""
        self._fixed = tuple(_on_device(values[name]) for name in names[2:])
        actors = max(group.size for group in environment.groups)
        if actors == 1:
            self._grid = (-(-n_envs // THREADS_PER_BLOCK), THREADS_PER_BLOCK)
        else:
            self._grid = (n_envs, min(1024, -(-actors // 32) * 32))

    def begin(self, now: int) -> None:
        """Let the time of kernels count from `now`: the same launches are then the same rollout of another time, as in a CUDA graph."""
        self._began.fill_(now)
        self._began_at = now

    def __call__(self, kernel: str, row: int, now: int) -> None:
        """Launch `kernel` on row `row` of the trajectory; `now` counts the steps since the run began, modulo 2^32."""
        getattr(self._module, kernel)[(*self._grid, _stream())](row, self._clock(now), *self._fixed)

    def rollout(self, steps: int, greedy: bool, now: int, fused: FusedArrays) -> None:
        """Run `steps` steps from row 0 in one kernel; `fused` is what `fused_arrays` made."""
        for parameters, index, weights in fused.packed:
            torch.index_select(parameters, 0, index, out=weights)
        function = self._module.rollout[(*fused.grid, _stream(), fused.shared_bytes)]
        function(steps, greedy, 0, self._clock(now), *self._fixed, *fused.arguments)

    def _clock(self, now: int) -> np.uint32:
        return np.uint32((now - self._began_at) & 0xFFFFFFFF)

    def fused_arrays(self, environment: Environment, networks: Mapping[str, Network], taken: Trajectory) -> FusedArrays | None:
        """Return how `rollout` is launched with these networks, and each group's network, values and policy outputs on the device.

        None where the columns of a network would not fit into a block's shared memory.
        """
        device = taken.terminated.device
        one_actor = all(group.size == 1 for group in environment.groups)
        actors = {group.name: ENVIRONMENTS_PER_BLOCK if one_actor else group.size for group in environment.groups}
        columns = {name: columns_for(networks[name], count) for name, count in actors.items()}
        if one_actor:
            columns = dict.fromkeys(columns, min(columns.values()))
        if min(columns.values()) == 0:
            return None
        packed, arguments = [], []
        for group in environment.groups:
            network, arrays = networks[group.name], taken.groups[group.name]
            made, index = block_network(network, group.action.outputs, columns[group.name], device)
            packed.append((torch.as_tensor(network.parameters), index, made.weights))
            arguments += [_on_device(value) for value in (made, arrays.value.flatten(1), arrays.policy_output.flatten())]
        least, most = THREADS_PER_ROLLOUT
        if one_actor:
            grid = (-(-self._n_envs // min(columns.values())), least)
        else:
            grid = (self._n_envs, min(most, max(least, self._grid[1])))
        shared_bytes = max(4 * networks[name].rows * count for name, count in columns.items())
        return FusedArrays(packed, grid, shared_bytes, tuple(arguments))


def _stream() -> Any:
    # Never cached: while a CUDA graph is captured torch's current stream is another one.
    return 0 if SIMULATED else cuda.external_stream(torch.cuda.current_stream().cuda_stream)


def _on_device(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if SIMULATED:
            # The simulator's own array type around the same memory; a plain numpy array would be copied there and back.
            return cuda.simulator.cudadrv.devicearray.FakeCUDAArray(value.numpy())
        return cuda.as_cuda_array(value, sync=False)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_on_device(v) for v in value))
    return value
