"""Memory that the processes of a simulator share. It has no name, so nothing is left of it once the processes have ended. No torch."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from math import prod

import numpy as np

from warprun.simulation.arrays import rollout_arrays
from warprun.simulation.external.recipe import ExternalEnvironment

ALIGNMENT = 64
"""Bytes, a line of the cache: two arrays never share one."""

Layout = Mapping[str, tuple[tuple[int, ...], str]]
"""Name of an array -> shape and dtype."""
ROLLOUT = ("obs", "mask", "action", "reward", "final_obs")
"""Arrays of the group that environments read or write; with `terminated` and `truncated` the part of a trajectory that is shared."""
FAULT_NUMBERS = 4
"""Numbers that are recorded about a fault: its number in `faults.FIELDS` plus 1, step, component, and 0 for NaN, 1 for inf, 2 for -inf."""


def layout(environment: ExternalEnvironment, n_envs: int, horizon: int, workers: int) -> Layout:
    """Return the arrays of N environments in W workers by name."""
    common, groups = rollout_arrays(environment.spec, n_envs, horizon)
    found = {name: (array.shape, array.dtype) for name, array in common.items()}
    found |= {name: (array.shape, array.dtype) for name, array in groups[environment.group].items() if name in ROLLOUT}
    found |= {
        "clock": ((n_envs,), "int64"),  # steps of the episode
        "cuts": ((n_envs,), "int64"),  # truncations in this rollout
        "episode_return": ((n_envs,), "float64"),
        "ended": ((n_envs,), "int64"),  # episodes since they were last counted
        "ended_steps": ((n_envs,), "int64"),
        "ended_return": ((n_envs,), "float64"),
        "replaced": ((n_envs,), "int64"),  # resets because of a fault
        "fault": ((n_envs, FAULT_NUMBERS), "int64"),
        "seed": ((n_envs,), "int64"),  # of the next reset of all environments
        "at": ((workers, 2), "int64"),  # environment that a worker calls, and the number of its calls; set before the call
    }
    if environment.state:
        dtype, shape = environment.state
        found["state"] = ((n_envs, *shape), dtype)
    return found


class SharedArrays:
    """Arrays by name, in memory that another process attaches to with the descriptor `file` and the same layout."""

    def __init__(self, layout: Layout, file: int | None = None) -> None:
        """Allocate the arrays, zeroed, or attach to those of `file`. Raises OSError."""
        offsets, total = _offsets(layout)
        self.file = _unnamed_file(total) if file is None else file
        self._map = mmap.mmap(self.file, total)
        self.bytes = np.frombuffer(self._map, np.uint8)
        """All of the memory."""
        self.arrays = {
            name: np.frombuffer(self._map, dtype, prod(shape), offsets[name]).reshape(shape) for name, (shape, dtype) in layout.items()
        }

    def close(self) -> None:
        """Let no more processes attach; the memory lives as long as its arrays. A second call does nothing."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _offsets(layout: Layout) -> tuple[dict[str, int], int]:
    offsets, end = {}, 0
    for name, (shape, dtype) in layout.items():
        offsets[name] = end
        end += -(-prod(shape) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
    return offsets, max(end, ALIGNMENT)


def _unnamed_file(size: int) -> int:
    """Return the descriptor of a file in memory without a name."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("warprun")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, size)
    return file
