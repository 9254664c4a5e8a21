"""The arrays of a single step of many environments, and the interface to the kernels that fill them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import torch

from warprun.environment import arguments
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.memory import ROLLOUT, Arrays

Array: TypeAlias = np.ndarray | torch.Tensor
"""numpy on CPU, torch on CUDA."""
Allocate: TypeAlias = Callable[[tuple[int, ...], str], Array]
"""(shape, dtype) -> a new array."""


class GroupStep(NamedTuple):
    """What a group of A actors is given and gives in one step of N environments; arrays are flat, environments first, then actors."""

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


class StepBackend(Protocol):
    """The kernels `reset` and `advance` of a device, with the arrays that stay the same bound."""

    def prepare(self, step: Step) -> None:
        """Compile the kernels or load them from the cache; leaves any state."""

    def seed(self, words: Mapping[str, np.uint32]) -> None:
        """Draw random numbers with another seed from now on. Arguments that were bound before keep the old one."""

    def bind(self, step: Step) -> Sequence[object]:
        """Return the arguments of the kernels for the arrays of a step."""

    def take(self, number: int, given: Array, action: Array) -> bool:
        """Copy actions of a caller for group `number`, both arrays flat; return False if some do not exist, which then must not be used."""

    def reset(self, now: int, bound: Sequence[object]) -> None:
        """Begin an episode in every environment with the random numbers of step `now`; write `obs` and `mask`."""

    def advance(self, now: int, bound: Sequence[object]) -> bool:
        """Take step `now`, and begin the next episode where one ends; return False if the host knows that none has ended."""


def allocate_step(plan: ArrayPlan, actions: tuple[Array, ...], empty: Allocate, zeros: Allocate) -> Step:
    """Return arrays for a step with these actions, one array for each group. `empty` may leave any content."""
    n, groups = plan.n_envs, []
    for group, action in zip(plan.environment.groups, actions, strict=True):
        rows, features = n * group.size, group.observation.size
        # What `observe` never writes to `out` is 0.
        obs = (zeros if "out" in arguments(group.observe) else empty)((rows * features,), "float32")
        mask = empty((rows * group.masked_actions,), "bool") if group.mask else None
        final_mask = zeros((rows * group.masked_actions,), "bool") if group.mask else None
        final_obs = zeros((rows * features,), "float32")
        groups.append(GroupStep(obs, mask, action, empty((rows,), "float32"), final_obs, final_mask))
    return Step(empty((n,), "bool"), empty((n,), "bool"), tuple(groups))


class KernelArguments:
    """Makes the NamedTuples that the kernels of a module take: what stays the same, then the arrays of a step."""

    def __init__(
        self, module: ModuleType, plan: ArrayPlan, arrays: Arrays, scalars: Mapping[str, object], convert: Callable[[object], object]
    ) -> None:
        names = [group.name for group in plan.environment.groups]
        self._convert = convert
        self._values: list[dict[str, object]] = [{**scalars, **arrays.common}, *(dict[str, object](arrays.groups[name]) for name in names)]
        self._classes = [module.Common, *(getattr(module, f"{name}_Arrays") for name in names)]
        self._fix()

    def change(self, scalars: Mapping[str, object]) -> None:
        """Replace scalars in `Common`."""
        self._values[0] |= scalars
        self._fix()

    def of(self, step: Step) -> list[object]:
        """Return the arguments for a step, one NamedTuple for the environment and one for each group."""
        convert, (common, *groups) = self._convert, self._classes
        fixed, *fixed_of_groups = self._fixed
        made = [common(**fixed, terminated=convert(step.terminated), truncated=convert(step.truncated))]
        for kind, own, group in zip(groups, fixed_of_groups, step.groups, strict=True):
            given = {name: convert(array) for name, array in zip(group._fields, group, strict=True) if array is not None}
            made.append(kind(**own, **given))
        return made

    def _fix(self) -> None:
        self._fixed = [
            {name: self._convert(values[name]) for name in kind._fields if name not in ROLLOUT}
            for kind, values in zip(self._classes, self._values, strict=True)
        ]
