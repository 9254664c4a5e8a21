"""Run kernels on CPU threads."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numba
import numpy as np
import torch


class CpuKernels:
    """The kernels of a module with their arrays bound; each call runs one over all environments."""

    def __init__(self, module: ModuleType, names: tuple[str, ...], values: dict[str, Any], threads: int) -> None:
        self._module = module
        self._threads = min(threads, numba.config.NUMBA_NUM_THREADS)
        self._fixed = tuple(v.numpy() if isinstance(v, torch.Tensor) else v for v in (values[name] for name in names[2:]))

    def __call__(self, kernel: str, row: int, now: int) -> None:
        """Run `kernel` on row `row` of the trajectory; `now` counts the steps since the run began, modulo 2^32."""
        numba.set_num_threads(self._threads)
        getattr(self._module, kernel)(row, np.uint32(now & 0xFFFFFFFF), *self._fixed)
