"""Checks of a `Simulator` that is code of the user: before a run that it is one, and in a run that it keeps to its spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

import torch

from warprun.errors import TrainingFailed, shown
from warprun.simulation.arrays import Layout, rollout_arrays
from warprun.simulation.simulator import Act, Simulator
from warprun.simulation.trajectory import GroupTrajectory, Trajectory
from warprun.spec import Spec
from warprun.user_code import refusal

METHODS = ("prepare", "reset", "collect", "episodes", "state", "fault", "close")
VALUES = ("spec", "device", "n_envs", "trajectory", "steps")


def check_simulator(made: object, make: Callable[..., object], spec: Spec, n_envs: int, horizon: int) -> None:
    """Raise ContractError, with the place of the function `make` that returned it, if `made` is no `Simulator` of this size."""
    present = dir(made)
    missing = [name for name in (*VALUES, *METHODS) if name not in present]
    if missing or isinstance(made, type):
        lacks = f", which has no {', '.join(missing)}" if missing else ""
        raise refusal(make, f"it must return a Simulator; it returns {shown(made)}{lacks}")
    for problem in _problems(made, spec, n_envs, horizon):
        raise refusal(make, problem)


def _problems(simulator: object, spec: Spec, n_envs: int, horizon: int) -> Iterator[str]:
    name = type(simulator).__name__
    values = {member: getattr(simulator, member) for member in (*VALUES, *METHODS)}
    for method in METHODS:
        if not callable(values[method]):
            yield f"{name}.{method} must be a method, not {shown(values[method])}"
    if values["n_envs"] != n_envs:
        yield f"{name}.n_envs must be {n_envs}, the number of environments; it is {shown(values['n_envs'])}"
    if not isinstance(values["steps"], int):
        yield f"{name}.steps must be an int, not {shown(values['steps'])}"
    trajectory = values["trajectory"]
    if not isinstance(trajectory, Trajectory):
        yield f"{name}.trajectory must be a Trajectory (warprun.simulation.trajectory.allocate), not {shown(trajectory)}"
        return
    common, groups = rollout_arrays(spec, n_envs, horizon)
    for member in ("terminated", "truncated"):
        yield from _tensor(f"{name}.trajectory.{member}", getattr(trajectory, member), common[member])
    if list(trajectory.groups) != list(groups):
        yield f"{name}.trajectory must have the groups {', '.join(groups)} of the spec; it has {', '.join(map(str, trajectory.groups))}"
        return
    for group, layouts in groups.items():
        for member in (field.name for field in fields(GroupTrajectory)):
            if member in layouts:
                where = f"{name}.trajectory.groups[{group!r}].{member}"
                yield from _tensor(where, getattr(trajectory.groups[group], member), layouts[member])


def _tensor(where: str, given: object, layout: Layout) -> Iterator[str]:
    """Yield what is wrong with one tensor."""
    if not isinstance(given, torch.Tensor):
        yield f"{where} must be a tensor, not a {type(given).__name__}"
    elif tuple(given.shape) != layout.shape or given.dtype != getattr(torch, layout.dtype):
        wanted, found = f"{list(layout.shape)} {layout.dtype}", f"{list(given.shape)} {str(given.dtype).removeprefix('torch.')}"
        yield f"{where} must have the shape and dtype {wanted}; it has {found}"
    elif not given.is_contiguous():
        yield f"{where} must be contiguous, as warprun.simulation.trajectory.allocate makes it; its strides are {given.stride()}"


class CheckedSimulator:
    """A simulator of the user, whose every rollout is checked."""

    def __init__(self, own: Simulator, first_env: int) -> None:
        """`first_env`: number of its first environment in the run."""
        self.spec, self.device, self.n_envs, self.trajectory = own.spec, own.device, own.n_envs, own.trajectory
        self.prepare, self.reset, self.episodes, self.fault = own.prepare, own.reset, own.episodes, own.fault
        self.state, self.close = own.state, own.close
        self._own, self._first_env = own, first_env
        self._most = min(len(group.final_obs) for group in self.trajectory.groups.values())

    @property
    def steps(self) -> int:
        return self._own.steps

    def collect(self, act: Act, greedy: bool = False) -> Trajectory:
        """Roll out. Raises TrainingFailed if an environment was truncated more often than `final_obs` has rows, which learning reads."""
        trajectory = self._own.collect(act, greedy)
        times, env = trajectory.truncated.sum(0).max(0)
        if times > self._most:
            raise TrainingFailed(
                f"environment {self._first_env + int(env)} was truncated {int(times)} times in {trajectory.horizon} steps by collect of the"
                f" simulator; with spec.time_limit={self.spec.time_limit} it can be {self._most}: lower the time limit of the spec"
            )
        return trajectory
