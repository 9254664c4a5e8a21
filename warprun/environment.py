"""What an environment is: spaces, agent groups, phases and functions. Light to import: no numba, no torch.

An environment consists of plain scalar Python functions. Their arguments are passed by *name*:

    s           the actor's own state (a NamedTuple of numbers; array fields are views of the actor's own slots, written in
                place; in `reset` only for filling these)
    action      the actor's action: an int for Discrete, a tuple of ints (MultiDiscrete) or of floats (Box)
    rng         the random stream of this call, see warprun.random
    p           the parameters (a NamedTuple of numbers), set with env.params.NAME=value
    tables      read-only arrays and numbers shared by all environments (a NamedTuple; float64 becomes float32)
    t           the number of steps since the last reset, before this step
    i           the index of the actor in its group
    k           the index of the action that `mask` decides about
    out         the observation to fill, if `observe` does not return a tuple; entries that are never written are 0
    GROUP       the state of another group: numbers if the group has one actor, else a NamedTuple of arrays indexed by
                actor (array fields by element, then actor). A phase that names its own group gets the values from before
                the phase.
    GROUP_sum   sums over the actors of a group, of the fields that the group declares (GROUP_max: maxima)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np

from warprun.spec import Box, Discrete, GroupSpec, MultiDiscrete, Space, Spec

__all__ = [
    "Box",
    "ContractError",
    "Discrete",
    "Environment",
    "Group",
    "MultiDiscrete",
    "NoParams",
    "Phase",
    "Space",
    "float32",
    "int32",
    "single_agent",
]

float32 = np.float32
int32 = np.int32


KernelFunction: TypeAlias = Callable[..., object]
"""A plain function of an environment, which kernels compile; the names of its arguments select what it gets."""


ISOLATED = "warprun_environment_"
"""Prefix of the packages in which environment files are imported, each with the files beside it."""


class ContractError(ValueError):
    """A mistake in the definition of an environment; the message is one line."""


class Field(NamedTuple):
    """One field of a state: its place among the float32 or the int32 slots of its group."""

    name: str
    integer: bool
    length: int
    """Length of an array field; 0 for a number."""
    first: int
    """First slot."""

    @property
    def slots(self) -> int:
        return self.length or 1


class NoParams(NamedTuple):
    """The parameters of an environment that has none."""


@dataclass(frozen=True)
class Group:
    """Actors that share their spaces, their functions and one policy."""

    name: str
    size: int
    """Number of actors."""
    state: type[NamedTuple]
    """A NamedTuple; fields annotated float32, int32 or, for arrays, Annotated[np.ndarray, 29] or Annotated[np.ndarray, 29, int32]."""
    observation: Box
    action: Space
    reset: KernelFunction
    """-> state at the start of an episode."""
    observe: KernelFunction
    """-> the observation, a tuple of numbers; or fills `out`."""
    mask: KernelFunction | None = None
    """-> whether action `k` is allowed (MultiDiscrete: k counts through all choices); None: all actions are allowed."""
    sums: tuple[str, ...] = ()
    """Fields whose sums over the actors are the argument GROUP_sum of functions."""
    maxima: tuple[str, ...] = ()
    """Fields whose maxima over the actors are the argument GROUP_max of functions."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of the state in the order of its definition."""
        used = {False: 0, True: 0}
        fields = []
        for name, annotation in get_type_hints(self.state, include_extras=True).items():
            integer, length = _field_type(self, name, annotation)
            fields.append(Field(name, integer, length, used[integer]))
            used[integer] += fields[-1].slots
        return tuple(fields)

    @property
    def spec(self) -> GroupSpec:
        """The spaces of the group, apart from its functions."""
        return GroupSpec(self.name, self.size, self.observation, self.action, self.mask is not None)

    @property
    def masked_actions(self) -> int:
        """Entries of the action mask of one actor; 0 without a mask."""
        return self.spec.masked_actions


@dataclass(frozen=True)
class Phase:
    """A part of the step, taken by all actors of one group; the next phase begins when all have finished."""

    group: str
    function: KernelFunction
    """-> state, reward, terminated. Rewards of an actor's phases add up; one terminated actor ends the episode."""


@dataclass(frozen=True)
class Environment:
    """Groups of actors and the phases of a step."""

    groups: tuple[Group, ...]
    phases: tuple[Phase, ...]
    params: type[NamedTuple] = NoParams
    """A NamedTuple with a default for every field: float, int or bool."""
    time_limit: int | None = None
    """Steps after which an episode is truncated; None: never."""
    tables: Callable[..., NamedTuple] | None = None
    """tables(**options) -> a NamedTuple of numpy arrays and numbers, made once and shared by all environments on the device."""
    options: dict[str, object] = field(default_factory=dict)
    """Arguments of `tables` with their defaults, set with env.NAME=value.

    For options that decide more than tables, such as spaces, see docs/environments.md."""

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        reductions = {f"{g.name}_sum" for g in self.groups if g.sums} | {f"{g.name}_max" for g in self.groups if g.maxima}
        for name in names:
            if not name.isidentifier() or names.count(name) > 1 or name in ARGUMENTS | reductions:
                raise ContractError(f"group name {name!r} is taken or not an identifier")
        missing = set(self.params._fields) - set(self.params._field_defaults)
        if missing:
            raise ContractError(f"parameter {min(missing)!r} of {self.params.__name__} has no default")
        if not self.phases:
            raise ContractError("an environment needs at least one phase")
        if len(self.phases) > MAX_PHASES:
            raise ContractError(f"an environment can have at most {MAX_PHASES} phases; this one has {len(self.phases)}")
        for phase in self.phases:
            self.group(phase.group)
            self._check_arguments(phase.function, ARGUMENTS - {"k", "out"})
        for group in self.groups:
            group.fields  # noqa: B018  raises for a field of an unknown type
            _check_bounds(group)
            self._check_arguments(group.reset, {"s", "rng", "p", "tables", "i"}, others=False)
            self._check_arguments(group.observe, ARGUMENTS - {"k", "action", "rng"})
            if group.mask:
                self._check_arguments(group.mask, ARGUMENTS - {"out", "action", "rng"})
            for name in group.sums + group.maxima:
                if name not in [f.name for f in group.fields if not f.length]:
                    raise ContractError(f"group {group.name!r} declares a sum or maximum of {name!r}, which is no number of its state")
            if group.name not in [phase.group for phase in self.phases]:
                raise ContractError(f"group {group.name!r} takes part in no phase")

    @property
    def spec(self) -> Spec:
        """Groups, spaces, masks and the time limit, apart from the functions."""
        return Spec(tuple(group.spec for group in self.groups), self.time_limit)

    def group(self, name: str) -> Group:
        """Return the group called `name`. Raises ContractError."""
        for group in self.groups:
            if group.name == name:
                return group
        raise ContractError(f"there is no group {name!r}; groups: {', '.join(g.name for g in self.groups)}")

    def _check_arguments(self, function: KernelFunction, known: set[str], others: bool = True) -> None:
        allowed = known - (set() if self.tables else {"tables"}) - (set() if self.params._fields else {"p"})
        if others:
            for group in self.groups:
                allowed |= (
                    {group.name} | ({f"{group.name}_sum"} if group.sums else set()) | ({f"{group.name}_max"} if group.maxima else set())
                )
        for name in arguments(function):
            if name not in allowed:
                code = function.__code__
                raise ContractError(
                    f"{code.co_filename}:{code.co_firstlineno} in {function.__name__}: unknown argument {name!r}; "
                    f"it can have {', '.join(sorted(allowed))}"
                )


MAX_PHASES = 16
"""Largest number of phases: each has its own random streams, numbered in four bits."""

ARGUMENTS = {"s", "action", "rng", "p", "tables", "t", "i", "k", "out"}


def single_agent(
    *,
    state: type[NamedTuple],
    observation: Box,
    action: Space,
    reset: KernelFunction,
    step: KernelFunction,
    observe: KernelFunction,
    mask: KernelFunction | None = None,
    params: type[NamedTuple] = NoParams,
    time_limit: int | None = None,
    tables: Callable[..., NamedTuple] | None = None,
    options: dict[str, object] | None = None,
) -> Environment:
    """Make an environment of one actor: one group called "agent", one phase."""
    group = Group("agent", 1, state, observation, action, reset, observe, mask)
    return Environment((group,), (Phase("agent", step),), params, time_limit, tables, options or {})


def arguments(function: KernelFunction) -> tuple[str, ...]:
    """Return the names of a function's arguments."""
    return tuple(inspect.signature(function).parameters)


def _check_bounds(group: Group) -> None:
    for space in (group.observation, group.action):
        if not isinstance(space, Box):
            continue
        for given in (space.low, space.high):
            if isinstance(given, tuple) and len(given) != space.size:
                raise ContractError(f"a Box of group {group.name!r} has {space.size} components and {len(given)} bounds")
        for low, high in space.bounds():
            largest = float(np.finfo(np.float32).max)
            if not low <= high or low == np.inf or high == -np.inf or any(largest < abs(b) < np.inf for b in (low, high)):
                raise ContractError(f"a Box of group {group.name!r} has bounds {low:g} to {high:g}; float32 has no numbers between them")


def _field_type(group: Group, name: str, annotation: object) -> tuple[bool, int]:
    scalars = {float32: False, float: False, int32: True, int: True, bool: True}
    if annotation in scalars:
        return scalars[annotation], 0
    if get_origin(annotation) is Annotated and get_args(annotation)[0] is np.ndarray:
        length, *kind = get_args(annotation)[1:]
        if isinstance(length, int) and length > 0 and (kind or [float32])[0] in scalars:
            return scalars[(kind or [float32])[0]], length
    raise ContractError(
        f"field {name!r} of {group.state.__name__} must be float32, int32 or Annotated[np.ndarray, LENGTH], not {annotation!r}"
    )
