"""The tensors of an engine, allocated once, and the arguments of its kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import torch

from warprun.environment import Environment, arguments
from warprun.kernels.flow import never_written
from warprun.simulation.arrays import COMMON, ONLY_EXTERNAL, PER_GROUP, SCRATCH, ArrayPlan, Layout
from warprun.simulation.trajectory import GroupTrajectory, Trajectory

ROLLOUT = {"terminated", "truncated", *(f.name for f in fields(GroupTrajectory))} | ONLY_EXTERNAL
"""Arrays that are part of a `Trajectory` or of a `Step`."""
FLAT = {array.name for array in (*COMMON, *PER_GROUP) if array.rows}
"""Arrays whose rows are flat in kernels."""

POISON = 0x6AAAAAAA
"""A large number in place of an int32 that is not written."""

KernelValues = dict[str, dict[str, object]]
"""NamedTuple in the kernel module (`Common`, `GROUP_Arrays`) -> field -> tensor or scalar."""


@dataclass(frozen=True)
class Arrays:
    """The tensors that only the engine uses, by the names of `arrays.COMMON` and `arrays.PER_GROUP`."""

    common: dict[str, torch.Tensor]
    groups: dict[str, dict[str, torch.Tensor]]

    def by_name(self) -> dict[str, torch.Tensor]:
        """Return all tensors, those of groups as GROUP.NAME."""
        return self.common | {f"{group}.{name}": tensor for group, named in self.groups.items() for name, tensor in named.items()}


def allocate(plan: ArrayPlan, device: torch.device, exploration: Mapping[str, torch.Tensor]) -> Arrays:
    """Allocate the tensors, zeroed; `exploration` has those that belong to the agent, by group."""

    def zeros(layouts: dict[str, Layout]) -> dict[str, torch.Tensor]:
        own = {name: layout for name, layout in layouts.items() if name not in ROLLOUT and name != "exploration"}
        return {name: torch.zeros(shape, dtype=getattr(torch, dtype), device=device) for name, (_, shape, dtype) in own.items()}

    groups = {group.name: zeros(plan.of_group(group)) for group in plan.environment.groups}
    for name, numbers in exploration.items():
        groups[name]["exploration"] = numbers
    return Arrays(zeros(plan.common()), groups)


def poison(environment: Environment, arrays: Arrays, taken: Trajectory) -> None:
    """Fill all that kernels have to write before anybody reads it with NaN, large integers and true."""
    own = SCRATCH | {f"{index.name}_{name}" for index in environment.indices for name in SCRATCH}
    _fill([tensor for name, tensor in arrays.by_name().items() if name.rpartition(".")[2] in own])
    rows = [taken.terminated, taken.truncated]
    for group in taken.groups.values():
        after = [rows[1:] for rows in (group.obs, group.mask, group.alive) if rows is not None]
        rows += [*after, group.reward, group.final_obs, *([] if group.final_alive is None else [group.final_alive])]
    _fill(rows)
    for made in environment.groups:
        for actor in range(made.size if "out" in arguments(made.observe) else 0):
            zeros = list(never_written(made.observe, actor, made.observation.size))
            for seen in (taken.groups[made.name].obs[1:], taken.groups[made.name].final_obs):
                seen[:, :, actor, zeros] = 0.0


def poison_choices(taken: Trajectory) -> None:
    """Fill what policies give in a rollout, before anybody reads it, with NaN and large integers: `action` as well."""
    _fill(
        [tensor for group in taken.groups.values() for tensor in (group.policy_output, group.action, group.log_prob, group.value)]
        + list(taken.activations.values())
    )


def _fill(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.fill_(math.nan if tensor.is_floating_point() else True if tensor.dtype == torch.bool else POISON)


def kernel_values(arrays: Arrays, taken: Trajectory, scalars: Mapping[str, object]) -> KernelValues:
    """Return the arguments of kernels, with flat rows in rollout arrays; `scalars` are further fields of `Common`."""
    rows = {"terminated": taken.terminated, "truncated": taken.truncated}
    values: KernelValues = {"Common": {**scalars, **arrays.common, **rows}}
    for name, group in taken.groups.items():
        values[f"{name}_Arrays"] = arrays.groups[name] | {n: tensor for n, tensor in vars(group).items() if tensor is not None}
    for named in values.values():
        named |= {n: value.view(len(value), -1) for n, value in named.items() if n in FLAT and isinstance(value, torch.Tensor)}
    return values
