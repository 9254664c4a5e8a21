"""The memory of engines, allocated once, the arrays of single steps, and the arguments of kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from types import ModuleType
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from warprun.environment import Environment, arguments
from warprun.kernels.flow import never_written
from warprun.simulation.arrays import COMMON, ONLY_BY_CALLER, PER_GROUP, SCRATCH, ArrayPlan, Layout
from warprun.simulation.trajectory import GroupTrajectory, Trajectory

Array: TypeAlias = np.ndarray | torch.Tensor
"""numpy on CPU, torch on CUDA."""

ROLLOUT = {"terminated", "truncated", *(f.name for f in fields(GroupTrajectory))} | ONLY_BY_CALLER
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


def allocate(
    plan: ArrayPlan,
    device: torch.device,
    exploration: Mapping[str, torch.Tensor],
    vary: Mapping[str, tuple[float, float]] | None = None,
) -> Arrays:
    """Allocate the tensors, zeroed but for the bounds of `vary`; `exploration` has those that belong to the agent, by group."""

    def zeros(layouts: dict[str, Layout]) -> dict[str, torch.Tensor]:
        own = {name: layout for name, layout in layouts.items() if name not in ROLLOUT and name != "exploration"}
        return {name: torch.zeros(shape, dtype=getattr(torch, dtype), device=device) for name, (_, shape, dtype) in own.items()}

    groups = {group.name: zeros(plan.of_group(group)) for group in plan.environment.groups}
    for name, numbers in exploration.items():
        groups[name]["exploration"] = numbers
    common = zeros(plan.common())
    if vary:
        common["vary_bounds"].copy_(torch.tensor(list(vary.values()), dtype=torch.float32))
    return Arrays(common, groups)


def poison(environment: Environment, arrays: Arrays, taken: Trajectory) -> None:
    """Fill all that kernels have to write before anybody reads it with NaN, large integers and true."""
    own = SCRATCH | {f"{index.name}_{name}" for index in environment.indices for name in SCRATCH}
    _fill([tensor for name, tensor in arrays.by_name().items() if name.rpartition(".")[2] in own])
    known = taken.horizon - bool(taken.carries)  # policies with memory read the ends of the last row
    rows = [taken.terminated[:known], taken.truncated[:known]]
    for group in taken.groups.values():
        rows += [
            *(seen[1:] for seen in group.seen().values()),
            group.reward,
            group.final_obs,
            *([] if group.final_alive is None else [group.final_alive]),
        ]
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


def kernel_arguments(module: ModuleType, values: KernelValues, convert: Callable[[object], object]) -> tuple[object, ...]:
    """Return the NamedTuples that the kernels of a module take, with what `convert` makes of each value."""
    return tuple(getattr(module, name)(**{n: convert(value) for n, value in named.items()}) for name, named in values.items())


# Single steps for callers ----------------------------------------------------------------------------------------------------


class GroupStep(NamedTuple):
    """Actions and results of a group of A actors in one step of N environments; arrays are flat, environments first, then actors."""

    obs: Array
    """[N * A * F] float32: after the step; of an environment whose episode has ended, the first of the next episode."""
    mask: Array | None
    """[N * A * M] bool: which actions are allowed next; None where all are."""
    action: Array
    """[N * A * C] int32, or float32 in the environment's units; read by the step."""
    reward: Array
    """[N * A] float32."""
    final_obs: Array
    """[N * A * F] float32: the last observation of an episode that has ended; the step writes no other entries."""
    final_mask: Array | None
    """[N * A * M] bool: which actions were allowed next in that last moment; None where all are."""


class Step(NamedTuple):
    """The arrays of one step."""

    terminated: Array
    """[N] bool."""
    truncated: Array
    """[N] bool; never together with `terminated`."""
    groups: tuple[GroupStep, ...]
    """In the order of the environment's groups."""


def allocate_step(plan: ArrayPlan, actions: tuple[Array, ...], zeros: Callable[[int, str], Array]) -> Step:
    """Return arrays for a step with these actions, one array for each group; `zeros` makes one of a size and a dtype."""
    n, groups = plan.n_envs, []
    for group, action in zip(plan.environment.groups, actions, strict=True):
        rows, features = n * group.size, group.observation.size
        mask, final_mask = (zeros(rows * group.masked_actions, "bool") if group.mask else None for _ in range(2))
        obs, final_obs = (zeros(rows * features, "float32") for _ in range(2))
        groups.append(GroupStep(obs, mask, action, zeros(rows, "float32"), final_obs, final_mask))
    return Step(zeros(n, "bool"), zeros(n, "bool"), tuple(groups))


def actions_of(plan: ArrayPlan, zeros: Callable[[int, str], Array]) -> tuple[Array, ...]:
    """Return an array [N * A * C] for the actions of each group, zeroed."""
    groups = plan.environment.groups
    return tuple(zeros(plan.n_envs * group.size * group.action.components, group.action.dtype) for group in groups)


class StepArguments:
    """The NamedTuples that the kernels of a module take for a step: what stays the same, which is converted once, and its arrays."""

    def __init__(self, module: ModuleType, arrays: Arrays, scalars: Mapping[str, object], convert: Callable[[object], object]) -> None:
        self._convert = convert
        self._classes = [module.Common, *(getattr(module, f"{name}_Arrays") for name in arrays.groups)]
        fixed: list[Mapping[str, object]] = [{**scalars, **arrays.common}, *arrays.groups.values()]
        self._fixed = [
            {name: convert(values[name]) for name in kind._fields if name not in ROLLOUT}
            for kind, values in zip(self._classes, fixed, strict=True)
        ]

    def change(self, scalars: Mapping[str, object]) -> None:
        """Replace scalars in `Common`."""
        self._fixed[0] |= scalars

    def of(self, step: Step) -> list[object]:
        """Return the arguments for a step, one NamedTuple for the environment and one for each group."""
        given: list[dict[str, Array]] = [step._asdict(), *(group._asdict() for group in step.groups)]
        return [
            kind(**fixed, **{name: self._convert(own[name]) for name in kind._fields if name in ROLLOUT})
            for kind, fixed, own in zip(self._classes, self._fixed, given, strict=True)
        ]
