"""Checks that a seed determines every bit, whatever the threads and the length of rollouts, and that tables are made alike each time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from warprun.checking.findings import Problem, doubt
from warprun.checking.names import listed
from warprun.checking.rolls import KernelRolls, Rolls, SimulatorRolls
from warprun.config.kept import Tables
from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.simulator import Simulator
from warprun.simulation.trial import Explorer
from warprun.spec import Spec

Make = Callable[[int, int, int], Simulator]
"""(horizon, seed, threads) -> a simulator; `threads` counts for kernels only."""
STEPS, HORIZON = 64, 16
Record = dict[str, np.ndarray]


def determinism(make: Make, spec: Spec, of_kernels: bool) -> Iterator[Problem]:
    """Compare rollouts that must be equal bit for bit."""
    first = record(make(HORIZON, 1, 1), spec)
    tries = {"twice with the same seed": (HORIZON, 1, 1), "in longer rollouts": (2 * HORIZON, 1, 1)}
    if of_kernels:
        tries |= {"with 2 threads": (HORIZON, 1, 2)}
    for what, settings in tries.items():
        differing = differences(first, record(make(*settings), spec))
        if differing:
            advice = "draw random numbers with warprun.random" if of_kernels else "draw random numbers from generators seeded by `seed`"
            yield Problem(f"{what}: {listed(differing)} differ; {advice}")
            return


def seeds(make: Make, spec: Spec) -> Iterator[Problem]:
    """Compare two seeds, which must differ in something."""
    if not differences(record(make(HORIZON, 1, 1), spec), record(make(HORIZON, 2, 1), spec)):
        yield doubt("two seeds give the same rollouts, from the first observation to the last; draw what should vary from the seed")


def record(simulator: Simulator, spec: Spec) -> Record:
    """Return everything that STEPS steps with random actions give, by name, [steps, N, ...]."""
    explorer = Explorer(spec, simulator.n_envs)
    rolls: Rolls = KernelRolls(simulator, explorer) if isinstance(simulator, KernelEngine) else SimulatorRolls(simulator, explorer)
    rolls.begin()
    parts: dict[str, list[np.ndarray]] = {f"the first observation of {name}": [] for name in rolls.trajectory.groups}
    for name, group in rolls.trajectory.groups.items():
        parts[f"the first observation of {name}"].append(group.obs[:1].numpy().copy())
    for _ in range(STEPS // rolls.trajectory.horizon):
        taken = rolls.roll()
        kept = {"terminated": taken.terminated, "truncated": taken.truncated}
        for name, group in taken.groups.items():
            kept |= {f"observations of {name}": group.obs[1:], f"rewards of {name}": group.reward, f"actions of {name}": group.action}
            if group.mask is not None:
                kept[f"masks of {name}"] = group.mask[1:]
        for name, tensor in kept.items():
            parts.setdefault(name, []).append(tensor.numpy().copy())
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def differences(one: Record, other: Record) -> list[str]:
    """Return the names of arrays that differ in any bit."""
    return [name for name in one if one[name].tobytes() != other[name].tobytes()]


def digests(tables: Tables | None) -> dict[str, str]:
    """Return a digest of every table; none if there are no tables."""
    named = {} if tables is None else tables._asdict()
    return {name: hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest() for name, value in named.items()}


def changing(first: Mapping[str, str], other: Mapping[str, str], when: str) -> Iterator[Problem]:
    """Find tables that differ between two times that they were made."""
    for name in first:
        if first[name] != other.get(name):
            yield Problem(f"table {name!r} has other values {when}; make it from files and options alone, random numbers from a fixed seed")
