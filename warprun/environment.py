"""The contract of environments: spaces, agent groups, phases and functions. Light to import: no numba, no torch.

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
    INDEX       actors sorted into cells, see `Index`
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Annotated, NamedTuple, TypeAlias, TypeGuard, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import numpy as np

from warprun.data import problem_of_array, problem_of_number
from warprun.errors import ContractError, shown
from warprun.spec import Box, Discrete, GroupSpec, MultiDiscrete, Space, Spec, is_name, whole_number
from warprun.user_code import check_function, refusal

__all__ = ["Box", "ContractError", "Discrete", "Environment", "Group", "Index", "MultiDiscrete", "NoParams", "Phase", "Space"]
__all__ += ["float32", "int32", "single_agent"]

float32 = np.float32
int32 = np.int32

KernelFunction: TypeAlias = Callable[..., object]
"""A plain function of an environment, which kernels compile; the names of its arguments select what it gets."""


class StateField(NamedTuple):
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


STATES: WeakKeyDictionary[object, tuple[StateField, ...]] = WeakKeyDictionary()
"""Every class that is the state of a group -> its fields."""


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
    lengths: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Lengths of array fields, instead of those in `state`: for lengths that options decide."""
    alive: str | None = None
    """Field that is not 0 as long as the actor is in the episode; after a step that leaves it 0 the actor has left, and learns nothing
    and gets no reward until the next episode. None: all actors stay."""

    def __post_init__(self) -> None:
        if any(self.spec.action.starts):  # `spec` raises for a bad name, size or space
            raise ContractError(f"functions get the actions of group {self.name!r} counted from 0, without a `start`: add it in the step")
        if not is_named_tuple(self.state):
            raise ContractError(f"state of group {self.name!r} must be a NamedTuple class, not {shown(self.state)}")
        if not isinstance(self.lengths, Mapping):
            raise ContractError(f"lengths of group {self.name!r} must be a dict of array fields and lengths, not {shown(self.lengths)}")
        numbers = [f.name for f in self.fields if not f.length]
        for name in self.lengths:
            if name not in self.state._fields or name in numbers:
                raise ContractError(f"group {self.name!r} declares a length of {name!r}, which is no array field of its state")
        masks = {} if self.mask is None else {"mask": self.mask}
        for argument, given in {"reset": self.reset, "observe": self.observe, **masks}.items():
            check_function(f"{argument} of group {self.name!r}", given)
        for argument, names in (("sums", self.sums), ("maxima", self.maxima)):
            if not isinstance(names, tuple):
                what = f"{argument} of group {self.name!r}"
                raise ContractError(f"{what} must be a tuple of names of fields, such as ('x',), not {shown(names)}")
            for name in names:
                if name not in numbers:
                    raise ContractError(f"group {self.name!r} declares a sum or maximum of {name!r}, which is no number of its state")
                if names.count(name) > 1:
                    raise ContractError(f"group {self.name!r} declares a sum or maximum of {name!r} twice")
        if self.alive is not None and self.alive not in numbers:
            raise ContractError(f"alive of group {self.name!r} must be the name of a number of its state, not {shown(self.alive)}")
        STATES[self.state] = self.fields

    @cached_property
    def fields(self) -> tuple[StateField, ...]:
        """The fields of the state in the order of its definition."""
        used = {False: 0, True: 0}
        fields = []
        for name, annotation in _annotations(self.state).items():
            integer, length = _field_type(self, name, annotation)
            fields.append(StateField(name, integer, length, used[integer]))
            used[integer] += fields[-1].slots
        if not fields:
            raise ContractError(f"{self.state.__name__}, the state of group {self.name!r}, needs at least one field")
        return tuple(fields)

    @property
    def spec(self) -> GroupSpec:
        """The spaces of the group, apart from its functions."""
        return GroupSpec(self.name, self.size, self.observation, self.action, self.mask is not None, self.alive is not None)

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

    def __post_init__(self) -> None:
        if not isinstance(self.group, str):
            raise ContractError(f"write Phase(group, function): the first is the name of a group, not {shown(self.group)}")
        check_function(f"the function (step) of a phase of group {self.group!r}", self.function)


@dataclass(frozen=True)
class Index:
    """Actors sorted into cells, so that a function can visit the actors of a few cells in place of all.

    Functions get it by its name: a NamedTuple with

        first   [cells + 1] int32: the actors of cell c are at the places first[c] to first[c + 1] - 1
        actor   [actors] int32: which actor is at a place. Actors of all groups of the index are numbered one after the other
        FIELD   [actors] float32, for each of `fields`: its value for the actor at a place

    The actors of a cell are in the order of their numbers. The index is made again before every phase and every round of observations that
    uses it, as sums are.
    """

    name: str
    groups: tuple[str, ...]
    """The groups whose actors are in it, in this order."""
    cells: int
    """Number of cells."""
    cell: KernelFunction
    """-> the number of an actor's cell; an actor with a number other than 0 to cells - 1 is not in the index. It is a function of `s`,
    `p`, `tables`, `t` and `i`."""
    fields: tuple[str, ...] = ()
    """Numbers of the states, which all these groups have."""

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ContractError(f"name {shown(self.name)} of an Index is not a Python identifier; use letters, digits and underscores")
        where = f"of index {self.name!r}"
        object.__setattr__(self, "cells", whole_number(f"cells {where}", self.cells))
        for argument, names in (("groups", self.groups), ("fields", self.fields)):
            if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
                raise ContractError(f"{argument} {where} must be a tuple of different names, such as ('x',), not {shown(names)}")
        if not self.groups:
            raise ContractError(f"groups {where} must name at least one group")
        if {"first", "actor"} & set(self.fields) or any(name.startswith("_") for name in self.fields):
            raise ContractError(f"fields {where} cannot be called first or actor, or begin with an underscore")
        check_function(f"cell {where}", self.cell)


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
    options: dict[str, object] = field(default_factory=dict, hash=False)
    """Arguments of `tables` with their defaults, set with env.NAME=value.

    For options that decide more than tables, such as spaces, see docs/environments.md."""
    indices: tuple[Index, ...] = ()
    """Actors sorted into cells, for functions that look for neighbours."""

    def __post_init__(self) -> None:
        forms = {Group: "Group(name, size, ...)", Phase: "Phase(group, function)", Index: "Index(name, groups, cells, cell)"}
        for argument, given, kind in (("groups", self.groups, Group), ("phases", self.phases, Phase), ("indices", self.indices, Index)):
            if not isinstance(given, tuple) or not all(isinstance(each, kind) for each in given):
                form = forms[kind]
                raise ContractError(f"{argument} must be a tuple of {form}, with a comma even after a single one, not {shown(given)}")
        self.spec  # noqa: B018  raises for groups of the same name and for a bad time limit
        reductions = {f"{g.name}_sum" for g in self.groups if g.sums} | {f"{g.name}_max" for g in self.groups if g.maxima}
        for group in self.groups:
            if group.name in ARGUMENTS | reductions:
                raise ContractError(f"group name {group.name!r} is taken by an argument of functions")
        taken = ARGUMENTS | reductions | {group.name for group in self.groups}
        for index in self.indices:
            self._check_index(index, taken)
            taken |= {index.name}
        _check_parameters(self.params)
        _check_options(self.tables, self.options)
        if not self.phases:
            raise ContractError("an environment needs at least one phase")
        if len(self.phases) > MAX_PHASES:
            raise ContractError(f"an environment can have at most {MAX_PHASES} phases; this one has {len(self.phases)}")
        every = ARGUMENTS | self._others
        for phase in self.phases:
            self.group(phase.group)
            self._check_arguments(phase.function, every - {"k", "out"})
        for group in self.groups:
            self._check_arguments(group.reset, {"s", "rng", "p", "tables", "i"})
            self._check_arguments(group.observe, every - {"k", "action", "rng"})
            if group.mask:
                self._check_arguments(group.mask, every - {"out", "action", "rng"})
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

    def indexed(self, index: Index) -> tuple[Group, ...]:
        """Return the groups whose actors are in an index, in the order of their numbers there."""
        return tuple(self.group(name) for name in index.groups)

    def make_tables(self) -> NamedTuple | None:
        """Call `tables` with its options; None if there is no such function. Raises ContractError for a result that kernels cannot read."""
        if self.tables is None:
            return None
        made = self.tables(**self.options)
        kind: object = type(made)
        if not isinstance(made, tuple) or not is_named_tuple(kind):
            raise refusal(self.tables, f"tables must return a NamedTuple of arrays and numbers; it returns {shown(made)}")
        for name, value in zip(kind._fields, made, strict=True):
            if problem := problem_of_array(value) if isinstance(value, np.ndarray) else problem_of_number(value):
                raise refusal(self.tables, f"table {name!r} {problem}")
        return made

    def _check_index(self, index: Index, taken: set[str]) -> None:
        if index.name in taken:
            raise ContractError(f"the name of index {index.name!r} is taken by another argument of functions")
        for group in self.indexed(index):
            numbers = [f.name for f in group.fields if not f.length]
            for name in index.fields:
                if name not in numbers:
                    where = f"the state of group {group.name!r}"
                    raise ContractError(f"index {index.name!r} has the field {name!r}, which is no number of {where}")
        self._check_arguments(index.cell, {"s", "p", "tables", "t", "i"})

    @property
    def _others(self) -> set[str]:
        """Names of arguments with which a function sees other actors: groups, sums, maxima and indices."""
        groups = {group.name for group in self.groups} | {index.name for index in self.indices}
        return groups | {f"{g.name}_sum" for g in self.groups if g.sums} | {f"{g.name}_max" for g in self.groups if g.maxima}

    def _check_arguments(self, function: KernelFunction, known: set[str]) -> None:
        allowed = known - (set() if self.tables else {"tables"}) - (set() if self.params._fields else {"p"})
        for name in arguments(function):
            if name not in allowed:
                whose, _, kind = name.rpartition("_")
                setting = {"sum": "sums", "max": "maxima"}.get(kind) if whose in allowed & {g.name for g in self.groups} else None
                told = f"write {setting}=(FIELD, ...) in Group({whose!r}, ...)" if setting else f"it can have {', '.join(sorted(allowed))}"
                raise refusal(function, f"unknown argument {name!r}; {told}")


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
    lengths: Mapping[str, int] | None = None,
) -> Environment:
    """Make an environment of one actor: one group called "agent", one phase."""
    group = Group("agent", 1, state, observation, action, reset, observe, mask, lengths=lengths or {})
    return Environment((group,), (Phase("agent", step),), params, time_limit, tables, options or {})


@cache
def arguments(function: KernelFunction) -> tuple[str, ...]:
    """Return the names of a function's arguments."""
    return tuple(inspect.signature(function).parameters)


def is_named_tuple(kind: object) -> TypeGuard[type[NamedTuple]]:
    """Return whether `kind` is a NamedTuple class."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_field_defaults")


def _check_parameters(params: object) -> None:
    if not is_named_tuple(params):
        raise ContractError(f"params must be a NamedTuple class with a default for every field, not {shown(params)}")
    for name in params._fields:
        if name not in params._field_defaults:
            raise ContractError(f"parameter {name!r} of {params.__name__} has no default")
        default = params._field_defaults[name]
        if type(default) not in (bool, int, float) and not isinstance(default, float):
            raise ContractError(f"parameter {name!r} of {params.__name__} must be a float, an int or a bool, not {shown(default)}")
        problem = problem_of_number(default, 2**31)
        if problem or (isinstance(default, float) and not np.isfinite(default)):
            raise ContractError(f"parameter {name!r} of {params.__name__} {problem or f'is {default}; it must be finite'}")


def _check_options(tables: object, options: object) -> None:
    if tables is not None and (not callable(tables) or isinstance(tables, type)):
        raise ContractError(f"tables must be a function that returns a NamedTuple, not {shown(tables)}")
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise ContractError(f"options must be a dict of names and defaults, not {shown(options)}")
    if tables is None:
        if options:
            raise ContractError(f"option {min(options)!r} is of no use: options are arguments of tables, and there is no such function")
        return
    known = inspect.signature(tables).parameters
    takes_all = any(parameter.kind == parameter.VAR_KEYWORD for parameter in known.values())
    for name in options:
        if name not in known and not takes_all:
            raise ContractError(f"option {name!r} is no argument of tables; it has {', '.join(known) or 'no arguments'}")
    for name, parameter in known.items():
        needed = parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if needed and name not in options:
            raise refusal(tables, f"argument {name!r} of tables has no default; add it to options")


def _annotations(state: type[NamedTuple]) -> dict[str, object]:
    try:
        found = get_type_hints(state, include_extras=True)
    except Exception as error:  # an annotation is code of the user
        raise ContractError(f"the annotations of {state.__name__} cannot be read: {type(error).__name__}: {error}") from error
    return {name: found.get(name) for name in state._fields}


def _field_type(group: Group, name: str, annotation: object) -> tuple[bool, int]:
    kinds = ((float32, False), (float, False), (int32, True), (int, True), (bool, True))
    scalars = {id(kind): integer for kind, integer in kinds}  # by id, because an annotation may have no hash
    where = f"field {name!r} of {group.state.__name__}"
    if id(annotation) in scalars:
        return scalars[id(annotation)], 0
    if get_origin(annotation) is Annotated and get_args(annotation)[0] is np.ndarray:
        length, *kind = get_args(annotation)[1:]
        if len(kind) <= 1 and all(id(each) in scalars for each in kind) and not isinstance(length, tuple):
            return scalars[id((kind or [float32])[0])], whole_number(f"LENGTH of {where}", group.lengths.get(name, length))
    raise ContractError(f"{where} must be float32, int32 or Annotated[np.ndarray, LENGTH], not {annotation!r}")
