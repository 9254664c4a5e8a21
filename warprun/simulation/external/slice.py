"""The part of a simulator that one process steps: environments, and the arrays of a rollout that they fill, in memory that all share.

The memory has no name, so nothing is left of it once the processes have ended. No torch.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from typing import Any, TypedDict

import numpy as np

from warprun.simulation.arrays import rollout_arrays
from warprun.simulation.external.recipe import ExternalEnvironment, Recipe
from warprun.simulation.external.sources import Outcome, Singles, Vectorized

ALIGNMENT = 64
"""Bytes, a line of the cache: two arrays never share one."""

RESET, STEP, SAVE, LOAD = b"r", b"s", b"g", b"p"
"""What the environments of a slice can be told to do, `Slice.run`."""
Layout = Mapping[str, tuple[tuple[int, ...], str]]
"""Name of an array -> shape and dtype."""
OF_ACTORS = ("obs", "mask", "action", "reward", "final_obs")
"""Arrays of the group that environments read or write. Of shape [T, N, 1, ...]: the third axis, actors, has the size 1."""
ROWS = (*OF_ACTORS, "terminated", "truncated")
"""The part of a trajectory that is shared; of other arrays the first axis counts environments."""


def layout(environment: ExternalEnvironment, n_envs: int, horizon: int, workers: int) -> Layout:
    """Return the arrays of N environments in W workers by name."""
    common, groups = rollout_arrays(environment.spec, n_envs, horizon)
    found = {name: (array.shape, array.dtype) for name, array in common.items()}
    found |= {name: (array.shape, array.dtype) for name, array in groups[environment.group].items() if name in OF_ACTORS}
    found |= {
        "clock": ((n_envs,), "int64"),  # steps of the episode
        "cuts": ((n_envs,), "int64"),  # truncations in this rollout
        "episode_return": ((n_envs,), "float64"),
        "ended": ((n_envs,), "int64"),  # episodes since they were last counted
        "ended_steps": ((n_envs,), "int64"),
        "ended_return": ((n_envs,), "float64"),
        "replaced": ((n_envs,), "int64"),  # resets because of a fault
        "fault": ((n_envs,), "bool"),  # a number is not finite or a mask forbids every action, since the reset of all
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
        self.layout = layout
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


class Job(TypedDict):
    """The work of a worker."""

    recipe: dict[str, Any]
    """Fields of a `Recipe`."""
    worker: int
    """Its number."""
    begin: int
    """The first of its environments."""
    end: int
    time_limit: int | None
    """Steps that a slice counts; None if environments count themselves."""
    choices: list[int]
    """Number of choices of each component of a masked action."""
    replaces: bool
    """Whether environments with a fault are reset."""


class Slice:
    """The environments of a job. Resets an environment in the step that ends its episode."""

    def __init__(self, arrays: Mapping[str, np.ndarray], job: Job) -> None:
        """Make the environments. Raises EnvironmentFailed."""
        recipe, begin, end = Recipe(**job["recipe"]), job["begin"], job["end"]
        self._source = (Vectorized if recipe.vector else Singles)(recipe, begin, end - begin, arrays["at"][job["worker"]])
        self._time_limit, self._replaces = job["time_limit"], job["replaces"]
        self._first_choices = np.cumsum((0, *job["choices"]))[:-1]
        row = {name: arrays[name][:, begin:end] for name in ROWS if name in arrays}
        self._row = {name: array[:, :, 0] if name in OF_ACTORS else array for name, array in row.items()}
        self._of = {name: array[begin:end] for name, array in arrays.items() if name not in ROWS and name != "at"}

    def run(self, command: bytes, row: int = 0) -> None:
        """Let the environments execute RESET, STEP, SAVE or LOAD."""
        if command == STEP:
            self.step(row)
        else:
            {RESET: self.reset, SAVE: self.save, LOAD: self.load}[command]()

    def close(self) -> None:
        """Close the environments."""
        with suppress(Exception):
            self._source.close()

    def reset(self) -> None:
        """Begin an episode in every environment with its seed; the observations go to row 0."""
        for name in ("clock", "cuts", "episode_return", "fault"):
            self._of[name][:] = 0
        out = self._outcome(0, 0)
        self._source.reset(self._of["seed"], out)
        self._check(out)

    def step(self, row: int) -> None:
        """Take a step with the actions of row `row`; the observations go to row + 1."""
        of, out = self._of, self._outcome(row, row + 1)
        if row == 0:
            of["cuts"][:] = 0
        self._source.step(self._row["action"][row], out)
        of["clock"] += 1
        if self._time_limit is not None:
            out.truncated[:] |= of["clock"] >= self._time_limit
        out.truncated[:] &= ~out.terminated
        counts = self._judge(out)
        of["episode_return"] += out.reward
        over = np.flatnonzero(out.terminated | out.truncated)
        if len(over):
            for n in over[out.truncated[over]]:
                self._row["final_obs"][of["cuts"][n], n] = out.obs[n]
                of["cuts"][n] += 1
            counted = over[counts[over]]
            of["ended"][counted] += 1
            of["ended_steps"][counted] += of["clock"][counted]
            of["ended_return"][counted] += of["episode_return"][counted]
            of["clock"][over] = 0
            of["episode_return"][over] = 0.0
            self._source.renew(over.tolist(), out)
        self._check(out)

    def save(self) -> None:
        """Write the states of the environments to the array `state`."""
        self._source.save(self._of["state"])

    def load(self) -> None:
        """Continue from the array `state`."""
        self._source.load(self._of["state"])

    def _outcome(self, row: int, after: int) -> Outcome:
        rows = self._row
        mask = rows["mask"][after] if "mask" in rows else None
        return Outcome(rows["obs"][after], mask, rows["reward"][row], rows["terminated"][row], rows["truncated"][row])

    def _judge(self, out: Outcome) -> np.ndarray:
        """Look for rewards and last observations that are not finite, or end episodes with these or with masks that forbid every action.

        Return [n]: whether an episode counts.
        """
        # The observation after a terminal state is of no use, nor is the mask after the last step.
        bad = (~np.isfinite(out.obs).all(-1) & ~out.terminated) | ~np.isfinite(out.reward)
        if self._replaces and out.mask is not None:
            bad |= self._forbids(out.mask) & ~(out.terminated | out.truncated)
        if not bad.any():
            return ~bad
        if not self._replaces:
            self._of["fault"] |= bad
            return np.ones_like(bad)
        out.terminated[bad], out.truncated[bad], out.reward[bad] = True, False, 0.0
        self._of["replaced"][bad] += 1
        return ~bad

    def _check(self, out: Outcome) -> None:
        """Look for observations that are not finite, and masks that forbid every action."""
        if not np.isfinite(out.obs).all():
            self._of["fault"] |= ~np.isfinite(out.obs).all(-1)
        if out.mask is not None:
            self._of["fault"] |= self._forbids(out.mask)

    def _forbids(self, mask: np.ndarray) -> np.ndarray:
        """Return whether a mask [n, M] forbids every value of a choice, [n]."""
        allowed: np.ndarray = np.logical_or.reduceat(mask, self._first_choices, axis=1)
        return np.logical_not(allowed.all(-1))
