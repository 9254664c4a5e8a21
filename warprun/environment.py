"""What an environment is: spaces, agent groups, phases and functions. Light to import: no numba, no torch.

An environment is written as plain scalar Python functions. They ask for what they need by the *names* of their arguments:

    s           the actor's own state (a NamedTuple of numbers; array fields are views of the actor's own slots, written in
                place; `reset` asks for it only to fill those)
    action      the actor's action: an int for Discrete, a tuple of ints (MultiDiscrete) or of floats (Box)
    rng         the source of random numbers of this call, see warprun.random
    p           the parameters (a NamedTuple of numbers), overridable from the command line
    tables      read-only arrays and numbers shared by all environments (a NamedTuple; float64 becomes float32)
    t           the number of steps since the last reset, before this step
    i           the index of the actor in its group
    k           the index of the action that `mask` is asked about
    out         the observation to be filled, for an `observe` that does not return a tuple; what no call writes is 0
    GROUP       the state of another group: its values where the group has one actor, else a NamedTuple of arrays
                indexed by actor (array fields by place, then actor). A phase that names its own group sees the values from
                before the phase.
    GROUP_sum   sums (or GROUP_max: maxima) over the actors of a group, of the fields that the group declares
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

float32 = np.float32
int32 = np.int32


class ContractError(ValueError):
    """An environment breaks its contract; the message is one line for the person who wrote it."""


@dataclass(frozen=True)
class Discrete:
    """One of `n` actions, 0 to n - 1."""

    n: int

    @property
    def outputs(self) -> int:
        """Numbers that a policy gives for one actor: the logits."""
        return self.n

    @property
    def components(self) -> int:
        """Numbers that make one action."""
        return 1


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once, choice j one of `nvec[j]`."""

    nvec: tuple[int, ...]

    @property
    def outputs(self) -> int:
        """Numbers that a policy gives for one actor: the logits of all choices, one after the other."""
        return sum(self.nvec)

    @property
    def components(self) -> int:
        """Numbers that make one action."""
        return len(self.nvec)


@dataclass(frozen=True)
class Box:
    """`size` real numbers between `low` and `high` (numbers for all components, or a tuple with one each).

    A policy acts in its own units. Of a component whose two bounds are finite, -1..1 maps linearly to low..high; what lies outside is
    clipped. Where a bound is infinite the units are those of the environment: the action is passed through, and clipped at the
    other bound if that is finite.
    """

    size: int
    low: float | tuple[float, ...] = -np.inf
    high: float | tuple[float, ...] = np.inf

    @property
    def outputs(self) -> int:
        """Numbers that a policy gives for one actor: the means, then the logarithms of the standard deviations."""
        return 2 * self.size

    @property
    def components(self) -> int:
        """Numbers that make one action."""
        return self.size

    def bounds(self) -> tuple[tuple[float, float], ...]:
        """Return (low, high) of every component."""
        low = self.low if isinstance(self.low, tuple) else (self.low,) * self.size
        high = self.high if isinstance(self.high, tuple) else (self.high,) * self.size
        return tuple((float(a), float(b)) for a, b in zip(low, high, strict=True))


Space = Discrete | MultiDiscrete | Box


class Field(NamedTuple):
    """One field of a state: where it lies among the float32 or the int32 slots of its group."""

    name: str
    integer: bool
    length: int
    """Of an array field; 0 for a number."""
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
    state: type
    """A NamedTuple; fields annotated float32, int32 or, for arrays, Annotated[np.ndarray, 29] or Annotated[np.ndarray, 29, int32]."""
    observation: Box
    action: Space
    reset: Callable[..., Any]
    """-> state at the start of an episode."""
    observe: Callable[..., Any]
    """-> the observation, a tuple of numbers; or fills `out`."""
    mask: Callable[..., Any] | None = None
    """-> whether action `k` is allowed (MultiDiscrete: k counts through all choices); None: all are."""
    sums: tuple[str, ...] = ()
    """Fields that other functions read as GROUP_sum."""
    maxima: tuple[str, ...] = ()
    """Fields that other functions read as GROUP_max."""

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
    def masked_actions(self) -> int:
        """Entries of the action mask of one actor; 0 without a mask."""
        return self.action.outputs if self.mask else 0


@dataclass(frozen=True)
class Phase:
    """A part of the step that every actor of one group takes; all are through before the next phase begins."""

    group: str
    function: Callable[..., Any]
    """-> state, reward, terminated. Rewards of an actor's phases add up; one terminated actor ends the episode."""


@dataclass(frozen=True)
class Environment:
    """Groups of actors and the phases of a step."""

    groups: tuple[Group, ...]
    phases: tuple[Phase, ...]
    params: type = NoParams
    """A NamedTuple with a default for every field: float, int or bool."""
    time_limit: int | None = None
    """Steps after which an episode is truncated; None: never."""
    tables: Callable[..., Any] | None = None
    """tables(**options) -> a NamedTuple of numpy arrays and numbers, made once and shared by all environments on the device."""
    options: dict[str, Any] = field(default_factory=dict)
    """What `tables` may be asked for from the command line (env.NAME=value), with defaults.

    Options that decide more than tables, such as spaces, are arguments of a function: see docs/environments.md."""

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        reductions = {f"{g.name}_sum" for g in self.groups if g.sums} | {f"{g.name}_max" for g in self.groups if g.maxima}
        for name in names:
            if not name.isidentifier() or names.count(name) > 1 or name in ARGUMENTS | reductions:
                raise ContractError(f"group name {name!r} is taken or not an identifier")
        missing = set(self.params._fields) - set(self.params._field_defaults)  # type: ignore[attr-defined]
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

    def group(self, name: str) -> Group:
        """Return the group called `name`."""
        for group in self.groups:
            if group.name == name:
                return group
        raise ContractError(f"there is no group {name!r}; groups: {', '.join(g.name for g in self.groups)}")

    def _check_arguments(self, function: Callable[..., Any], known: set[str], others: bool = True) -> None:
        allowed = known - (set() if self.tables else {"tables"}) - (set() if self.params._fields else {"p"})  # type: ignore[attr-defined]
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
"""Each has random streams of its own, numbered in four bits."""

ARGUMENTS = {"s", "action", "rng", "p", "tables", "t", "i", "k", "out"}


def single_agent(
    *,
    state: type,
    observation: Box,
    action: Space,
    reset: Callable[..., Any],
    step: Callable[..., Any],
    observe: Callable[..., Any],
    mask: Callable[..., Any] | None = None,
    params: type = NoParams,
    time_limit: int | None = None,
    tables: Callable[..., Any] | None = None,
    options: dict[str, Any] | None = None,
) -> Environment:
    """Make an environment of one actor: one group called "agent", one phase."""
    group = Group("agent", 1, state, observation, action, reset, observe, mask)
    return Environment((group,), (Phase("agent", step),), params, time_limit, tables, options or {})


def arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's arguments, which say what it is given."""
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


def _field_type(group: Group, name: str, annotation: Any) -> tuple[bool, int]:
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
