"""Random environments in exact arithmetic: numbers are multiples of 1/8 (of 1/64 within an expression), so that rounding decides nothing.

A seed gives the text of a module that uses the contract of environments at random: groups, phases that name their own and other groups,
sums, maxima, an index, actors that leave, masks, tables, parameters, integers of several widths, array fields, `out` under conditions,
loops with break and continue, early returns, helpers, draws.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

HEAD = '''\
from typing import Annotated, NamedTuple
import numpy as np
from warprun.environment import Box, Discrete, Environment, Group, Index, MultiDiscrete, Phase, float32, int32
from warprun.math import clip, floor
from warprun.random import randint, uniform

WEIGHTS = (0.5, -1.25, 2.0)
STEP = 3


def q(x):
    """Keep a number a small multiple of 1/8."""
    return floor(clip(x, -32.0, 32.0) * 8.0) * 0.125


class Params(NamedTuple):
    gain: float = 0.75
    shift: float = -0.5
    turns: int = 3
    on: bool = True


class Tables(NamedTuple):
    slope: np.ndarray
    grid: np.ndarray
    small: np.ndarray


def tables():
    grid = (np.arange(12, dtype=np.float64) % 7 - 3).reshape(4, 3) / 8
    return Tables(np.arange(5, dtype=np.float32) / 8, grid, np.arange(6, dtype=np.int8) - 3)
'''


@dataclass
class Group:
    """A group of a program: how its state looks, and what its functions may use."""

    name: str
    size: int
    reals: list[str]
    integers: list[str]
    arrays: dict[str, tuple[int, bool]]
    """Name -> length, whether of integers."""
    action: str
    alive: str | None = None
    fields: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        return f"{self.name.capitalize()}State"


@dataclass
class Scope:
    """What the statements of a function can read and write."""

    group: Group
    reals: list[str]
    integers: list[str]
    arrays: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Expression -> length, whether of integers."""
    writable: list[str] = field(default_factory=list)
    """Arrays, by expression."""
    locals_of_reals: list[str] = field(default_factory=list)
    locals_of_integers: list[str] = field(default_factory=list)
    draws: bool = False
    asked: set[str] = field(default_factory=set)
    """Arguments of the function."""
    leave: str = ""
    """The statement of an early return; empty: none."""


class Writer:
    """Writes a program from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.drawn = 0
        self.named = 0
        self.helpers: list[str] = []

    def write(self) -> str:
        """Return the text of a module that defines `environment`, and `VARY`, the parameters to randomize."""
        self.groups = [self._group(name) for name in ("ants", "bees", "cows")[: self.random.choice((1, 1, 1, 2, 2, 3))]]
        self.index = self.random.random() < 0.3
        self.helpers = [self._helper(n) for n in range(self.random.randint(0, 2))]
        parts = [HEAD, *self.helpers]
        for group in self.groups:
            parts += [self._state(group), self._reset(group), self._observe(group), self._mask(group)]
        if self.index:
            parts.append(self._cells())
        phases = [self._phase(n, group) for n, group in enumerate(self._order())]
        parts += [text for _, text in phases]
        return "\n\n".join(filter(None, parts)) + "\n\n\n" + self._environment([name for name, _ in phases])

    # Declarations ---------------------------------------------------------------------------------------------------------

    def _group(self, name: str) -> Group:
        r = self.random
        reals, integers = [f"x{n}" for n in range(r.randint(1, 3))], [f"n{n}" for n in range(r.randint(1, 2))]
        arrays = {f"h{n}": (r.randint(2, 4), r.random() < 0.4) for n in range(r.choice((0, 0, 1, 2)))}
        action = r.choice(("Discrete(3)", "Discrete(4)", "MultiDiscrete((2, 3))", "Box(1)", "Box(2, 0.0, 2.0)", "Box(1, -4.0, 4.0)"))
        made = Group(name, r.choice((1, 1, 1, 2, 3, 5)), reals, integers, arrays, action)
        if r.random() < 0.25:
            made.alive = "here"
            integers.append("here")
        made.fields = [*reals, *integers, *arrays]
        r.shuffle(made.fields)
        return made

    def _order(self) -> list[Group]:
        order = [*self.groups, *(self.random.choice(self.groups) for _ in range(self.random.randint(0, 1)))]
        self.random.shuffle(order)
        return order

    def _state(self, group: Group) -> str:
        kinds = dict.fromkeys(group.reals, "float32") | dict.fromkeys(group.integers, "int32")
        for name, (length, integer) in group.arrays.items():
            kinds[name] = f"Annotated[np.ndarray, {length}{', int32' if integer else ''}]"
        return "\n".join([f"class {group.state}(NamedTuple):", *(f"    {name}: {kinds[name]}" for name in group.fields)])

    def _environment(self, phases: Sequence[str]) -> str:
        groups = []
        for g in self.groups:
            options = [f"mask={g.name}_mask"] if self._masked(g) else []
            options += [f"sums=({g.reals[0]!r}, {g.integers[0]!r})", f"maxima=({g.reals[-1]!r},)"]
            options += [f"alive={g.alive!r}"] if g.alive else []
            given = f"{g.name!r}, {g.size}, {g.state}, Box(3), {g.action}, {g.name}_reset, {g.name}_observe, {', '.join(options)}"
            groups.append(f"        Group({given}),")
        limit = self.random.choice((3, 4, 5, 7, None))
        index = (
            [f"    indices=(Index('near', ({', '.join(f'{g.name!r}' for g in self.groups)},), 4, cell, ('x0',)),),"] if self.index else []
        )
        vary = (
            {"gain": self.random.choice(((0.0, 1.0), (-1.0, 1.0), (0.0, 4.0))), "turns": (2.0, 2.0)} if self.random.random() < 0.3 else {}
        )
        lines = ["environment = Environment(", "    groups=(", *groups, "    ),"]
        taken = ", ".join(f"Phase({name.partition('_')[0]!r}, {name})" for name in phases)
        lines += [f"    phases=({taken},),"]
        return "\n".join([*lines, f"    params=Params,\n    time_limit={limit},\n    tables=tables,", *index, ")", f"VARY = {vary!r}", ""])

    def _masked(self, group: Group) -> bool:
        return "Discrete" in group.action and group.name != "bees"

    # Functions ------------------------------------------------------------------------------------------------------------

    def _reset(self, group: Group) -> str:
        self.drawn = 0
        scope = Scope(group, ["p.shift"], ["i"], draws=True)
        scope.arrays |= {f"s.{name}": about for name, about in group.arrays.items()}
        scope.writable += scope.arrays
        body = list(self._statements(scope, 1, 1)) if group.arrays else []
        values = {name: f"q({self._draw()})" for name in group.reals} | {
            name: f"randint(rng, {self._next()}, 9) - 4" for name in group.integers
        }
        values |= {name: f"s.{name}" for name in group.arrays} | ({group.alive: "1"} if group.alive else {})
        given = ["rng", "i", "p"] + (["s"] if group.arrays else [])
        return _function(f"{group.name}_reset", given, [*body, f"return {group.state}({', '.join(values[n] for n in group.fields)})"])

    def _observe(self, group: Group) -> str:
        scope = self._scope(group, ["s", "p", "t", "i"])
        body = list(self._statements(scope, self.random.randint(0, 1), 1))
        if self.random.random() < 0.5:
            values = ", ".join(self._real(scope) for _ in range(3))
            return _function(f"{group.name}_observe", self._given(scope), [*body, f"return {values}"])
        for n in self.random.sample(range(3), self.random.randint(1, 3)):
            write = f"out[{n}] = {self._real(scope)}"
            kind = self.random.random()
            if kind < 0.4:
                body += [f"if {self._condition(scope)}:", f"    {write}"]
            elif kind < 0.6:
                at = self._new("j")
                body += [f"for {at} in range({self._integer(scope)} % 3):", f"    out[{at}] = {self._real(scope)}"]
            elif kind < 0.75:
                body += [f"if {self._condition(scope)}:", "    return", write]
            else:
                body.append(write)
        return _function(f"{group.name}_observe", [*self._given(scope), "out"], body)

    def _mask(self, group: Group) -> str:
        if not self._masked(group):
            return ""
        scope = self._scope(group, ["s", "p", "t", "i"])
        scope.integers.append("k")
        always = "k == 0 or k == 2" if "Multi" in group.action else "k == 1"
        return _function(f"{group.name}_mask", [*self._given(scope), "k"], [f"return {always} or {self._condition(scope)}"])

    def _cells(self) -> str:
        return _function("cell", ["s", "i"], [f"return (s.n0 + i) % {self.random.choice((4, 5))}"])

    def _phase(self, number: int, group: Group) -> tuple[str, str]:
        self.drawn = 0
        r, name = self.random, f"{group.name}_step{number}"
        scope = self._scope(group, ["s", "p", "t", "i"])
        scope.draws = r.random() < 0.6
        scope.writable += [f"s.{name}" for name in group.arrays]
        if "Multi" in group.action:
            scope.integers += ["action[0]", "action[1]"]
        elif "Discrete" in group.action:
            scope.integers.append("action")
        else:
            scope.reals.append("action[0]")
        if r.random() < 0.3:
            scope.leave = f"return {self._made(scope)}, {self._constant()}, False"
        body = list(self._statements(scope, r.randint(1, 4), 2))
        over = self._condition(scope) if r.random() < 0.3 else "False"
        # What the compiler sees that nobody reads, it leaves out.
        reward = f"q({' + '.join([self._real(scope), *scope.locals_of_reals[-3:]])})"
        body.append(f"return {self._made(scope)}, {reward}, {f'({over}) and t > 1' if over != 'False' else over}")
        given = [*self._given(scope), "action", *(["rng"] if scope.draws else [])]
        return name, _function(name, given, body)

    def _made(self, scope: Scope) -> str:
        """Return the next state of the actor."""
        group, values = scope.group, {}
        for name in group.fields:
            if name in group.arrays:
                values[name] = f"s.{name}"
            elif name == group.alive:
                values[name] = (
                    f"(1 if {self._condition(scope)} else s.{name})"
                    if self.random.random() < 0.3
                    else f"s.{name} * {self.random.choice((0, 1, 1))}"
                )
            elif name in group.reals:
                values[name] = f"q({self._real(scope)})"
            else:
                values[name] = self.random.choice(
                    (f"int32({self._integer(scope)})", self._integer(scope), f"{self._integer(scope)} * 40503 >> 3")
                )
        return f"{group.state}({', '.join(values[n] for n in group.fields)})"

    def _helper(self, number: int) -> str:
        scope = Scope(Group("", 1, [], [], {}, ""), ["x", "y"], ["n"])
        scope.leave = "return x - y"
        body = list(self._statements(scope, self.random.randint(1, 2), 1))
        return _function(f"helper{number}", ["x", "y", "n"], [*body, f"return q({self._real(scope, 1)})"])

    def _scope(self, group: Group, given: Sequence[str]) -> Scope:
        """Return what a function of a group can read: its own state, parameters, tables, and the states of some groups."""
        r = self.random
        scope = Scope(group, [f"s.{name}" for name in group.reals] + ["p.shift"], [f"s.{name}" for name in group.integers] + ["i", "t"])
        if "p" in given:
            scope.reals.append("floor(p.gain * 8.0) * 0.125")
            scope.integers.append("int(p.turns)")
        scope.arrays |= {f"s.{name}": about for name, about in group.arrays.items()}
        scope.asked |= set(given)
        scope.arrays |= {"tables.slope": (5, False), "tables.small": (6, True)}
        scope.reals.append(f"tables.grid[{self._index_of('i', 4)}, 1]")
        scope.asked.add("tables")
        others = r.sample(self.groups, r.randint(0, len(self.groups)))
        if group not in others and r.random() < 0.4:
            others.append(group)
        for other in others:
            scope.asked.add(other.name)
            if other.size == 1:
                scope.reals += [f"{other.name}.{name}" for name in other.reals]
                scope.integers += [f"{other.name}.{name}" for name in other.integers]
                scope.arrays |= {f"{other.name}.{name}": about for name, about in other.arrays.items()}
            else:
                scope.arrays |= {f"{other.name}.{name}": (other.size, False) for name in other.reals}
                scope.arrays |= {f"{other.name}.{name}": (other.size, True) for name in other.integers}
                for name, (length, integer) in other.arrays.items():
                    (scope.integers if integer else scope.reals).append(
                        f"{other.name}.{name}[{r.randrange(length)}, {r.randrange(other.size)}]"
                    )
        if r.random() < 0.4:
            other = r.choice(self.groups)
            kind = r.choice(
                (f"{other.name}_sum.{other.reals[0]}", f"{other.name}_sum.{other.integers[0]}", f"{other.name}_max.{other.reals[-1]}")
            )
            scope.asked.add(kind.split(".")[0])
            scope.reals.append(f"clip({kind}, -64.0, 64.0)")
        if self.index and r.random() < 0.6:
            scope.asked.add("near")
            scope.integers += ["near.first[1]", "(near.first[4] - near.first[2])"]
        return scope

    def _given(self, scope: Scope) -> list[str]:
        given = sorted(scope.asked)
        self.random.shuffle(given)
        return given

    # Statements -----------------------------------------------------------------------------------------------------------

    def _statements(self, scope: Scope, count: int, depth: int) -> Iterator[str]:
        kinds = [self._assign, self._assign, self._branch, self._write, self._choose]
        for _ in range(count):
            kind = self.random.choice([*kinds, *([self._loop, self._loop, self._while] if depth else [])])
            yield from kind(scope, depth)
        if depth and scope.leave and self.random.random() < 0.4:
            yield f"if {self._condition(scope)}:"
            yield f"    {scope.leave}"

    def _assign(self, scope: Scope, depth: int) -> Iterator[str]:
        if self.random.random() < 0.6:
            value = f"q({self._real(scope)})"
            name = self._new("y")
            yield f"{name} = {value}"
            scope.locals_of_reals.append(name)
        else:
            value = self._integer(scope)
            name = self._new("m")
            yield f"{name} = {value} {self.random.choice(('% 23', '* 65537 * 3'))}"
            scope.locals_of_integers.append(name)

    def _update(self, scope: Scope) -> str:
        """Return a statement that changes a local variable, or an array."""
        if scope.locals_of_reals and self.random.random() < 0.6:
            return f"{self.random.choice(scope.locals_of_reals)} = q({self._real(scope)})"
        if scope.locals_of_integers and self.random.random() < 0.7:
            return f"{self.random.choice(scope.locals_of_integers)} = {self._integer(scope)} % 31"
        return next(self._write(scope, 0), "pass")

    def _write(self, scope: Scope, depth: int) -> Iterator[str]:
        if not scope.writable:
            return
        array = self.random.choice(scope.writable)
        length, integer = scope.arrays[array]
        at = self._index_of(self._integer(scope, 1), length)
        yield f"{array}[{at}] = {self._integer(scope) if integer else f'q({self._real(scope)})'}"

    def _choose(self, scope: Scope, depth: int) -> Iterator[str]:
        """Assign a variable in both branches."""
        value, other, condition = self._real(scope), self._real(scope), self._condition(scope)
        name = self._new("z")
        yield from (f"if {condition}:", f"    {name} = q({value})", "else:", f"    {name} = q({other})")
        scope.locals_of_reals.append(name)

    def _branch(self, scope: Scope, depth: int) -> Iterator[str]:
        yield f"if {self._condition(scope)}:"
        yield f"    {self._update(scope)}"
        if self.random.random() < 0.4:
            yield f"elif {self._condition(scope)}:"
            yield f"    {self._update(scope)}"
        if self.random.random() < 0.4:
            yield "else:"
            yield f"    {self._update(scope)}"

    def _loop(self, scope: Scope, depth: int) -> Iterator[str]:
        turns = self.random.choice(("3", "STEP", "12", "1, 6, 2", *[f"{self._integer(scope)} % 5"] * 3))
        total, at = self._new("y"), self._new("j")
        yield f"{total} = {self._constant()}"
        yield f"for {at} in range({turns}):"
        scope.locals_of_reals.append(total)
        scope.integers.append(at)
        yield from self._body(scope, total, depth)
        scope.integers.remove(at)

    def _while(self, scope: Scope, depth: int) -> Iterator[str]:
        total, count = self._new("y"), self._new("c")
        yield f"{total} = {self._constant()}"
        yield f"{count} = 0"
        scope.locals_of_reals.append(total)
        yield f"while {count} < 9 and {self._condition(scope)}:"
        yield f"    {count} += 1"
        scope.integers.append(count)
        yield from self._body(scope, total, depth)
        scope.integers.remove(count)

    def _body(self, scope: Scope, total: str, depth: int) -> Iterator[str]:
        """Yield the body of a loop; what it defines is gone after it."""
        kept = list(scope.locals_of_reals), list(scope.locals_of_integers)
        if self.random.random() < 0.4:
            yield f"    if {self._condition(scope)}:"
            yield f"        {self.random.choice(('break', 'continue'))}"
        yield f"    {total} = q({total} + {self._real(scope)})"
        for _ in range(self.random.randint(0, 2)):
            yield f"    {self._update(scope)}"
        if depth > 1 and self.random.random() < 0.5:
            yield from (f"    {line}" for line in self._statements(scope, 1, depth - 1))
        scope.locals_of_reals[:], scope.locals_of_integers[:] = kept

    # Expressions ----------------------------------------------------------------------------------------------------------

    def _real(self, scope: Scope, depth: int = 2) -> str:
        r = self.random
        if depth == 0 or r.random() < 0.25:
            return self._atom(scope)
        kind = r.random()
        one, other = self._real(scope, depth - 1), self._atom(scope)
        if kind < 0.55:
            return f"({one} {r.choice('+-')} {other})"
        if kind < 0.7:
            return f"{self._atom(scope)} * {r.choice((self._constant(), 'p.shift' if 'p.shift' in scope.reals else '0.5'))}"
        if kind < 0.8:
            return f"{r.choice(('min', 'max'))}({one}, {other})"
        if kind < 0.88:
            return f"({one} if {self._condition(scope)} else {other})"
        if kind < 0.95 and self.helpers and scope.group.name:
            return f"helper{r.randrange(len(self.helpers))}({self._atom(scope)}, {other}, {self._integer(scope, 1)})"
        return f"abs({one})"

    def _atom(self, scope: Scope) -> str:
        r = self.random
        choices = [*scope.reals, *scope.locals_of_reals, *scope.locals_of_reals]
        kind = r.random()
        if kind < 0.6 and choices:
            return r.choice(choices)
        reals = [(name, length) for name, (length, integer) in scope.arrays.items() if not integer]
        if kind < 0.75 and reals:
            name, length = r.choice(reals)
            return f"{name}[{self._index_of(self._integer(scope, 1), length)}]"
        if kind < 0.82 and scope.draws:
            return self._draw()
        if kind < 0.9:
            return f"float32({self._integer(scope, 1)} % 9)"
        return r.choice((self._constant(), "WEIGHTS[1]"))

    def _integer(self, scope: Scope, depth: int = 2) -> str:
        r = self.random
        atoms = [*scope.integers, *scope.locals_of_integers]
        integers = [(name, length) for name, (length, integer) in scope.arrays.items() if integer]
        if depth == 0 or r.random() < 0.4:
            if integers and r.random() < 0.25:
                name, length = r.choice(integers)
                return f"{name}[{self._index_of(r.choice(atoms), length)}]"
            return r.choice(atoms) if atoms and r.random() < 0.85 else str(r.randint(-3, 9))
        one, other = self._integer(scope, depth - 1), self._integer(scope, 0)
        return r.choice(
            (
                f"({one} + {other})",
                f"({one} - {other})",
                f"({one} * {r.randint(-3, 7)})",
                f"({one} // {r.choice((2, 3, -2))})",
                f"({one} % {r.randint(2, 11)})",
                f"({one} >> {r.randint(1, 3)})",
                f"({one} & {r.choice((1, 7, 255))})",
                f"({one} if {self._comparison(scope)} else {other})",
            )
        )

    def _condition(self, scope: Scope) -> str:
        one = self._comparison(scope)
        kind = self.random.random()
        if kind < 0.65:
            return one
        if kind < 0.75:
            return f"not ({one})"
        return f"({one} {self.random.choice(('and', 'or'))} {self._comparison(scope)})"

    def _comparison(self, scope: Scope) -> str:
        r = self.random
        if r.random() < 0.5:
            return f"{self._atom(scope)} {r.choice(('<', '>', '<=', '>=', '==', '!='))} {self._atom(scope)}"
        atoms = [*scope.integers, *scope.locals_of_integers] or ["1"]
        return f"{r.choice(atoms)} % {r.randint(2, 4)} {r.choice(('<', '==', '!=', '>='))} {r.randint(0, 2)}"

    def _draw(self) -> str:
        n = self._next()
        return self.random.choice((f"float32(randint(rng, {n}, 17)) * 0.125", f"floor(uniform(rng, {n}, 0.0, 1.0) * 8.0) * 0.125"))

    def _index_of(self, number: str, length: int) -> str:
        return f"({number}) % {length}"

    def _constant(self) -> str:
        return str(self.random.randint(-24, 24) / 8)

    def _next(self) -> int:
        self.drawn += 1
        return self.drawn

    def _new(self, first: str) -> str:
        self.named += 1
        return f"{first}{self.named}"


def _function(name: str, given: Sequence[str], body: Sequence[str]) -> str:
    return "\n".join([f"def {name}({', '.join(given)}):", *(f"    {line}" for line in body)])
