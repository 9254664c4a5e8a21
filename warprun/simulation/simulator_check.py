"""Checks that what an environment gives as its `Simulator` is one, before a run begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

import torch

from warprun.environment import refusal
from warprun.errors import shown
from warprun.simulation.arrays import Layout, rollout_arrays
from warprun.simulation.trajectory import GroupTrajectory, Trajectory
from warprun.spec import Spec

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
