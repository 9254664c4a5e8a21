"""Rollouts with given actions, of kernels and of any other simulator; their speed and their determinism."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from warprun.checking.findings import Problem, doubt, listed
from warprun.config.environment_copy import Tables
from warprun.simulation.faults import Fault
from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.plain import Rows
from warprun.simulation.simulator import Simulator
from warprun.simulation.trajectory import Trajectory
from warprun.simulation.trial import Actions, Explorer, Masks
from warprun.spec import GroupSpec, Spec

CERTAIN = 50.0
"""Logit of the chosen action; that of the others is 0."""
LOG_STD = -20.0
"""Log standard deviation of real numbers."""
SECONDS = 0.5
"""Least time of a measurement of speed."""


class KernelRolls:
    """Rollouts of kernels: actions are written, and the kernel `step` takes them."""

    def __init__(self, engine: KernelEngine, explorer: Explorer) -> None:
        self.engine, self.explorer = engine, explorer
        self.trajectory = engine.trajectory
        self._rolled = False

    def begin(self) -> None:
        """Reset every environment; row 0 then holds the first observations."""
        self.engine.reset()
        self._rolled = False

    def roll(self) -> Trajectory:
        """Take `horizon` steps."""
        if self._rolled:
            self.engine.carry_over()
        self._rolled = True
        for row in range(self.trajectory.horizon):
            put(self.trajectory, row, self.explorer.choose(masks_of(self.trajectory, row)))
            self.engine.step(row)
        return self.trajectory

    def fault(self) -> Fault | None:
        """Return the first number that was not finite."""
        return self.engine.fault(wait=True)


class SimulatorRolls:
    """The same of any simulator: policy outputs with which only the chosen action is sampled."""

    def __init__(self, simulator: Simulator, explorer: Explorer) -> None:
        self.simulator, self.explorer = simulator, explorer
        self.trajectory = simulator.trajectory

    def begin(self) -> None:
        self.simulator.reset()

    def roll(self) -> Trajectory:
        return self.simulator.collect(self._act)

    def fault(self) -> Fault | None:
        return self.simulator.fault(wait=True)

    def _act(self, trajectory: Trajectory, row: int) -> None:
        for name, actions in self.explorer.choose(masks_of(trajectory, row)).items():
            outputs = policy_output_of(self.simulator.spec.group(name), actions)
            trajectory.groups[name].policy_output.copy_(torch.from_numpy(outputs))
            trajectory.groups[name].value[row].zero_()


Rolls = KernelRolls | SimulatorRolls


def policy_output_of(group: GroupSpec, actions: np.ndarray) -> np.ndarray:
    """Return policy outputs [N, A, P] with which only `actions` are sampled."""
    space = group.action
    logits = np.zeros((*actions.shape[:2], space.mask_entries), np.float32)
    first = 0
    for n, size in enumerate(space.choices):
        np.put_along_axis(logits, first + actions[..., n : n + 1].astype(np.int64), CERTAIN, axis=-1)
        first += size
    means = actions[..., len(space.choices) :].astype(np.float32)
    return np.concatenate([logits, means, np.full_like(means, LOG_STD)], axis=-1)


def masks_of(trajectory: Trajectory, row: int) -> Masks:
    """Return the masks of a row."""
    return {name: None if group.mask is None else group.mask[row].numpy() for name, group in trajectory.groups.items()}


def put(trajectory: Trajectory, row: int, actions: Actions) -> None:
    """Write the actions of a row."""
    for name, chosen in actions.items():
        trajectory.groups[name].action[row].copy_(torch.from_numpy(chosen))


def steps_per_second(run: Callable[[], object], steps: int) -> float:
    """Return environment steps per second of `run`, a call of which takes `steps`; the first call does not count."""
    run()
    done, began = 0, time.perf_counter()
    while True:
        run()
        done += steps
        elapsed = time.perf_counter() - began
        if elapsed > SECONDS:
            return done / elapsed


def rate(steps: float) -> str:
    """Return a number of steps per second for people."""
    return f"{steps / 1e6:.3g} M" if steps >= 1e6 else f"{steps:,.0f}"


Make = Callable[[int, int, int], Simulator]
"""(horizon, seed, threads) -> a simulator; `threads` counts for kernels only."""
STEPS, HORIZON = 64, 16


def determinism(make: Make, spec: Spec, of_kernels: bool) -> Iterator[Problem]:
    """Find rollouts that differ although they must be equal bit for bit."""
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
    """Find that two seeds give the same rollouts."""
    if not differences(record(make(HORIZON, 1, 1), spec), record(make(HORIZON, 2, 1), spec)):
        yield doubt("two seeds give the same rollouts, from the first observation to the last; draw what should vary from the seed")


def record(simulator: Simulator, spec: Spec) -> Rows:
    """Return all results of STEPS steps with random actions, by name, [steps, N, ...]."""
    explorer = Explorer(spec, simulator.n_envs)
    rolls: Rolls = KernelRolls(simulator, explorer) if isinstance(simulator, KernelEngine) else SimulatorRolls(simulator, explorer)
    rolls.begin()
    parts = {f"the first observation of {name}": [group.obs[:1].numpy().copy()] for name, group in rolls.trajectory.groups.items()}
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


def differences(one: Rows, other: Rows) -> list[str]:
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
