"""One environment in plain Python, by the contract of docs/environments.md alone. It shares no plan and no code with the kernels."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypedDict, TypeVar

import numpy as np

from warprun.environment import Environment, Group, Index, KernelFunction, StateField, arguments
from warprun.kernels import compile as kernels
from warprun.random import RESET, STEP, VARIATION, Rng, uniform
from warprun.simulation.codegen.called import whole
from warprun.simulation.units import in_environment_units

Rows: TypeAlias = dict[str, np.ndarray]
"""Arrays by name; here group -> a value of every actor, [A, ...]."""


class Seen(NamedTuple):
    """A state as policies see it."""

    observation: Rows
    """[A, F] float32."""
    mask: Rows
    """[A, M] bool, of the groups that have one."""
    alive: Rows
    """[A] bool, of the groups whose actors can leave."""


class Taken(NamedTuple):
    """The results of a step."""

    reward: Rows
    """[A] float32."""
    terminated: bool
    truncated: bool
    final: Seen | None
    """The end of an episode as policies would have seen it next; None if it goes on."""
    seen: Seen
    """The state that policies see next: of the next episode if this one has ended."""


Named = TypeVar("Named", bound=NamedTuple)


class OfRun(TypedDict):
    """Arguments of `PlainEnvironment` that all environments of a run share, apart from the seed."""

    params: NamedTuple
    tables: NamedTuple | None
    vary: Mapping[str, tuple[float, float]]


class OfSeededRun(OfRun):
    """The same with the seed."""

    seed: int


def varied(params: Named, drawn: Mapping[str, object]) -> Named:
    """Return parameters with those that are drawn for an episode, each in its type."""
    return params._replace(**{name: type(getattr(params, name))(value) for name, value in drawn.items()})


class PlainEnvironment:
    """Environment `number` of those with a seed, with the draws that kernels would make.

    `params` is a NamedTuple of float32 and int32; `tables` one of arrays and numbers in the types of kernels, or None; `vary` maps
    parameters to (low, high). `call` makes of each function of the environment what is called in its place. `cut_at`: step that
    cuts off an episode before its time limit.
    """

    def __init__(
        self,
        environment: Environment,
        number: int = 0,
        *,
        seed: int,
        params: NamedTuple,
        tables: NamedTuple | None = None,
        vary: Mapping[str, tuple[float, float]] | None = None,
        call: Callable[[KernelFunction], object] = kernels.plain_function,
        cut_at: int | None = None,
    ) -> None:
        self.environment, self.number, self.seed = environment, number, seed
        self.params, self.tables, self.vary, self.cut_at = params, tables, vary or {}, cut_at
        self.steps = 0
        """Steps since the beginning, the time of random draws."""
        self.clock = 0
        """Steps of the episode."""
        self.states = {g.name: [_blank(g) for _ in range(g.size)] for g in environment.groups}
        """Group -> the state of every actor."""
        sizes = [group.size for group in environment.groups]
        self._numbered_from = {name: sum(sizes[:n]) for n, name in enumerate(self.states)}
        self._call = call
        self._built: dict[KernelFunction, Callable[..., Any]] = {}
        if self.vary:
            self.params = varied(params, dict.fromkeys(self.vary, 0))

    def reset(self) -> Seen:
        """Begin an episode, and return what policies see. Its draws are those of the step before."""
        self._begin(self.steps - 1)
        return self.see()

    def step(self, actions: Mapping[str, np.ndarray]) -> Taken:
        """Take a step with the actions of each group, [A, C] in the units of the policy. After an end the next episode begins."""
        groups, limit = self.environment.groups, self.environment.time_limit
        stays = {group.name: self._alive(group) for group in groups}
        reward = {group.name: np.zeros(group.size, np.float32) for group in groups}
        terminated = False
        for number, phase in enumerate(self.environment.phases):
            group = self.environment.group(phase.group)
            views = self._views([phase.function])
            for actor in range(group.size):
                rng = self._rng(STEP + 16 * number, group, actor, self.steps)
                given = {"action": _action(group, actions[group.name][actor]), "rng": rng}
                state, gained, over = self._of(group, phase.function, actor, views, given)
                self._store(group, actor, state)
                reward[group.name][actor] += gained
                terminated |= bool(over)
        for name, gains in reward.items():
            gains[~stays[name]] = 0.0
        self.clock += 1
        truncated = ((limit is not None and self.clock >= limit) or self.steps == self.cut_at) and not terminated
        final = self.see() if terminated or truncated else None
        if final:
            self._begin(self.steps)
        self.steps += 1
        return Taken(reward, terminated, truncated, final, self.see())

    def see(self) -> Seen:
        """Return what policies see of the current state."""
        groups, seen = self.environment.groups, Seen({}, {}, {})
        views = self._views(function for group in groups for function in (group.observe, group.mask) if function)
        for group in groups:
            actors = range(group.size)
            seen.observation[group.name] = np.stack([self._observe(group, actor, views) for actor in actors])
            if group.mask:
                choices = range(group.masked_actions)
                allowed = [[bool(self._of(group, group.mask, actor, views, {"k": k})) for k in choices] for actor in actors]
                seen.mask[group.name] = np.array(allowed)
            if group.alive is not None:
                seen.alive[group.name] = self._alive(group)
        return seen

    def field(self, group: Group, field: StateField) -> np.ndarray:
        """Return a field of the states of a group, [A] or [A, L]."""
        return np.stack([getattr(state, field.name) for state in self.states[group.name]])

    def put(self, group: Group, field: StateField, values: np.ndarray) -> None:
        """Write a field of the states of a group, [A] or [A, L]."""
        for actor, (state, value) in enumerate(zip(self.states[group.name], values, strict=True)):
            if field.length:
                getattr(state, field.name)[:] = value
            else:
                self.states[group.name][actor] = state._replace(**{field.name: _number(field, value)})

    def sample(self, group: Group, name: str) -> object:
        """Return a value that functions of a group get for the argument `name`, for its type."""
        given = {"action": _action(group, np.zeros(group.action.components)), "rng": self._rng(RESET, group, 0, 0), "k": 0}
        given["out"] = np.zeros(group.observation.size, np.float32)
        return self._argument(name, group, 0, self._views([], {name}), given)

    def _begin(self, now: int) -> None:
        self.clock = 0
        rng = Rng(*self._key(), np.uint32(now & 0xFFFFFFFF), np.uint32(VARIATION << 24))
        draws = [(name, whole if isinstance(getattr(self.params, name), np.int32) else uniform) for name in self.vary]
        drawn = {name: draw(rng, n, *self.vary[name]) for n, (name, draw) in enumerate(draws)}
        self.params = varied(self.params, drawn)
        for group in self.environment.groups:
            for actor in range(group.size):
                state = self._of(group, group.reset, actor, {}, {"rng": self._rng(RESET, group, actor, now)})
                self._store(group, actor, state)

    def _observe(self, group: Group, actor: int, views: Mapping[str, object]) -> np.ndarray:
        out = np.zeros(group.observation.size, np.float32)
        returned = self._of(group, group.observe, actor, views, {"out": out})
        return out if "out" in arguments(group.observe) else np.array(returned, np.float32)

    def _alive(self, group: Group) -> np.ndarray:
        return np.array([group.alive is None or getattr(state, group.alive) != 0 for state in self.states[group.name]])

    def _store(self, group: Group, actor: int, state: NamedTuple) -> None:
        """Keep the numbers of a state; array fields were written in place."""
        own = self.states[group.name][actor]
        parts = (getattr(own, f.name) if f.length else _number(f, getattr(state, f.name)) for f in group.fields)
        self.states[group.name][actor] = group.state._make(parts)

    # Arguments of functions -----------------------------------------------------------------------------------------------

    def _of(self, group: Group, function: KernelFunction, actor: int, views: Mapping[str, object], given: Mapping[str, object]) -> Any:
        """Call a function of the environment for an actor."""
        if function not in self._built:
            self._built[function] = self._call(function)  # type: ignore[assignment]
        return self._built[function](*(self._argument(name, group, actor, views, given) for name in arguments(function)))

    def _argument(self, name: str, group: Group, actor: int, views: Mapping[str, object], given: Mapping[str, object]) -> object:
        if name in given:
            return given[name]
        if name in views:
            return views[name]
        own = {"s": self.states[group.name][actor], "p": self.params, "tables": self.tables, "t": np.int32(self.clock), "i": actor}
        return own[name]

    def _views(self, functions: Iterable[KernelFunction], asked: set[str] | None = None) -> dict[str, object]:
        """Return the states, sums, maxima and indices that functions ask for, as they are now."""
        asked = asked or {name for function in functions for name in arguments(function)}
        views: dict[str, object] = {}
        for group in self.environment.groups:
            states = self.states[group.name]
            if group.name in asked:
                views[group.name] = _copied(group, states[0]) if group.size == 1 else _together(group, states)
            for name, fields, reduce in ((f"{group.name}_sum", group.sums, _sum), (f"{group.name}_max", group.maxima, _largest)):
                if name in asked:
                    views[name] = _kind(f"{name}_Fields", fields)(
                        *(reduce([getattr(state, field) for state in states]) for field in fields)
                    )
        return views | {index.name: self._index(index) for index in self.environment.indices if index.name in asked}

    def _index(self, index: Index) -> object:
        """Return the actors of an index in the order of their cells and numbers, with the number of those in earlier cells."""
        actors = [(group, actor) for group in self.environment.indexed(index) for actor in range(group.size)]
        cells = [int(self._of(group, index.cell, actor, {}, {})) for group, actor in actors]
        order = sorted((number for number, cell in enumerate(cells) if 0 <= cell < index.cells), key=lambda number: cells[number])
        first, placed = _zeros(True, index.cells + 1), _zeros(True, len(actors))
        first[:] = [sum(0 <= other < cell for other in cells) for cell in range(index.cells + 1)]
        placed[: len(order)] = order
        columns = [_zeros(False, len(actors)) for _ in index.fields]
        for place, number in enumerate(order):
            group, actor = actors[number]
            for column, field in zip(columns, index.fields, strict=True):
                column[place] = getattr(self.states[group.name][actor], field)
        return _kind(f"{index.name}_Index", ("first", "actor", *index.fields))(first, placed, *columns)

    def _key(self) -> tuple[np.uint32, np.uint32, np.uint32]:
        return np.uint32(self.seed & 0xFFFFFFFF), np.uint32(self.seed >> 32 & 0xFFFFFFFF), np.uint32(self.number)

    def _rng(self, purpose: int, group: Group, actor: int, now: int) -> Rng:
        source = (purpose << 24) + self._numbered_from[group.name] + actor
        return Rng(*self._key(), np.uint32(now & 0xFFFFFFFF), np.uint32(source))


@cache
def _kind(name: str, fields: tuple[str, ...]) -> Callable[..., object]:
    return namedtuple(name, fields)


def _zeros(integer: bool, *shape: int) -> np.ndarray:
    """Return zeros whose last axis has a stride, as slices of the arrays of kernels do."""
    return np.zeros((*shape, 2), np.int32 if integer else np.float32)[..., 0]


def _number(field: StateField, value: object) -> np.generic:
    """Return a number of a state as it is stored: an integer keeps its low 32 bits."""
    return np.int32(np.asarray(value).astype(np.int64).astype(np.int32)) if field.integer else np.float32(value)  # type: ignore[arg-type]


def _blank(group: Group) -> NamedTuple:
    return group.state._make(_zeros(f.integer, f.length) if f.length else _number(f, 0) for f in group.fields)


def _copied(group: Group, state: NamedTuple) -> NamedTuple:
    copied = _blank(group)
    for field, own in zip(group.fields, copied, strict=True):
        if field.length:
            own[:] = getattr(state, field.name)
    return state._replace(**{f.name: getattr(copied, f.name) for f in group.fields if f.length})


def _together(group: Group, states: list[NamedTuple]) -> NamedTuple:
    """Return the states of several actors as one, with arrays [A] of numbers and [L, A] of array fields."""
    found = []
    for f in group.fields:
        found.append(_zeros(f.integer, *([f.length] if f.length else []), group.size))
        found[-1][...] = np.stack([getattr(state, f.name) for state in states], axis=-1)
    return group.state._make(found)


def _sum(numbers: list[np.generic]) -> np.float32:
    total = np.float32(0.0)
    for number in numbers:
        total += np.float32(number)  # type: ignore[arg-type]
    return total


def _largest(numbers: list[np.generic]) -> np.float32:
    return np.float32(max(np.float32(number) for number in numbers))  # type: ignore[arg-type]


def _action(group: Group, given: np.ndarray) -> object:
    """Return the argument `action`: bounded components of the policy's -1..1 are mapped to low..high."""
    space = group.action
    numbers = tuple(in_environment_units(space, given.astype(space.dtype)))
    return numbers if space.shape else numbers[0]
