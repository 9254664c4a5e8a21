"""Run kernels on a CUDA GPU or in the simulator; the one module that imports numba.cuda."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numba import cuda

from warprun.environment import Environment

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
THREADS_PER_BLOCK = 128
"""For one thread per environment: four warps, enough to hide latency with several blocks on a multiprocessor."""


class CudaKernels:
    """The kernels of a module with their arrays bound; each call launches one on torch's current stream."""

    def __init__(self, module: ModuleType, names: tuple[str, ...], values: dict[str, Any], environment: Environment, n_envs: int) -> None:
        self._module = module
        self._fixed = tuple(_on_device(values[name]) for name in names[2:])
        actors = max(group.size for group in environment.groups)
        if actors == 1:
            self._grid = (-(-n_envs // THREADS_PER_BLOCK), THREADS_PER_BLOCK)
        else:
            self._grid = (n_envs, min(1024, -(-actors // 32) * 32))

    def __call__(self, kernel: str, row: int, now: int) -> None:
        """Launch `kernel` on row `row` of the trajectory; `now` counts the steps since the run began, modulo 2^32."""
        # Never cached: under a CUDA graph capture torch's current stream is another one.
        stream = 0 if SIMULATED else cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        getattr(self._module, kernel)[(*self._grid, stream)](row, np.uint32(now & 0xFFFFFFFF), *self._fixed)


def _on_device(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if SIMULATED:
            # The simulator's own array type around the same memory; a plain numpy array would be copied there and back.
            return cuda.simulator.cudadrv.devicearray.FakeCUDAArray(value.numpy())
        return cuda.as_cuda_array(value, sync=False)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_on_device(v) for v in value))
    return value
