"""Expressions and statements for one actor: its state, its entries of rows, the arguments and results of user functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from warprun.environment import ARGUMENTS, MAX_PHASES, Group, Index, StateField, arguments
from warprun.kernels.sampling import to_bounds
from warprun.math import clip
from warprun.random import ACTION, EXPLORATION, RESET, STEP, VARIATION, Rng
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.templates import Function, Names, block, index, lines
from warprun.spec import Space

PURPOSES = {"RESET": RESET, "ACTION": ACTION, "VARIATION": VARIATION, "EXPLORATION": EXPLORATION}
STREAMS = {name: f"{purpose} << 24" for name, purpose in PURPOSES.items()}
STREAMS |= {f"STEP_{phase}": f"{STEP + 16 * phase} << 24" for phase in range(MAX_PHASES)}
"""Name of a random stream -> its purpose, in the highest byte of `Rng.source`."""


class Expressions:
    """Writes the expressions of one environment for one target."""

    def __init__(self, plan: ArrayPlan, names: Names) -> None:
        self.plan = plan
        self.names = names
        self.target = plan.target
        self.groups = plan.environment.groups
        self.params: tuple[str, ...] = plan.environment.params._fields  # type: ignore[attr-defined]
        self.arrays = {group.name: plan.of_group(group) for group in self.groups}
        """The arrays that each group has."""

    # Entries of arrays ----------------------------------------------------------------------------------------------------

    def entry(self, group: Group, array: str, component: int | str = 0, width: int = 1) -> str:
        """Return the entry of this actor in a flat row of an array."""
        return f"{group.name}_{array}[{index(group, self.target.at, component, width)}]"

    def state(self, group: Group, actor: str, suffix: str = "") -> str:
        """Return the state of an actor, or of all actors if `actor` is a slice."""
        return f"{group.name}_State({', '.join(self._slot(group, f, actor, suffix) for f in group.fields)})"

    def is_alive(self, group: Group) -> str:
        """Return whether this actor is in the episode, by its state."""
        return f"{self._slot(group, next(f for f in group.fields if f.name == group.alive), 'actor')} != 0"

    def store(self, group: Group, state: str) -> str:
        """Return the statements that store a state; array fields were written in place."""
        numbers = ((f, f"{state}.{f.name}") for f in group.fields if not f.length)
        return lines(*(f"{self._slot(group, f, 'actor')} = {f'np.int32({given})' if f.integer else given}" for f, given in numbers))

    def copy_state(self, group: Group) -> str:
        """Return the statements that copy the state of this actor before a phase changes it."""
        return lines(
            *(
                block(
                    f"for slot in range({group.name}_{kind}.shape[0]):",
                    f"{group.name}_{kind}_before[slot, actor, lane] = {group.name}_{kind}[slot, actor, lane]",
                )
                for kind in ("f", "i")
            )
        )

    def _slot(self, group: Group, f: StateField, actor: str, suffix: str = "") -> str:
        slots = f"{f.first}:{f.first + f.length}" if f.length else str(f.first)
        return f"{group.name}_{'i' if f.integer else 'f'}{suffix}[{slots}, {actor}, lane]"

    # Calls of user functions ----------------------------------------------------------------------------------------------

    def call(self, group: Group, function: Function, stream: str = "", out: str = "", phase: bool = False) -> tuple[str, str]:
        """Return a comment with the file and line of a user's function, and a call of it for this actor.

        `stream` is for `rng`, `out` for the row that the function fills. A phase sees the state of its own group as it was before.
        """
        given = (self._argument(group, name, stream, out, phase) for name in arguments(function))
        code = function.__code__  # type: ignore[attr-defined]
        place = "/".join(Path(code.co_filename).parts[-2:])
        comment = re.sub(r"[^\w ./:<>-]", "?", f"{place}:{code.co_firstlineno} {function.__name__}", flags=re.ASCII)
        written = function.__name__ if function.__name__.isidentifier() else "lambda"
        # Each kind of global has its own suffix, so that groups and functions can have any name.
        name = self.names.use(f"{group.name}_{written}_function", function)
        return f"# {comment}", f"{name}({', '.join(given)})"

    def _argument(self, group: Group, name: str, stream: str, out: str, phase: bool) -> str:
        if name == "s":
            return self.state(group, "actor")
        if name == "action":
            return self._action(group)
        if name == "rng":
            return self.rng(stream, group)
        if name == "p" and self.plan.vary:
            return f"Params({', '.join(map(self._parameter, self.params))})"
        if name in ARGUMENTS:
            return {"t": "clock[lane]", "i": "actor", "out": out}.get(name, name)
        before = phase and name == group.name and "f_before" in self.arrays[name]
        return self._others(name, "_before" if before else "")

    def _parameter(self, name: str) -> str:
        if name not in self.plan.vary:
            return f"p.{name}"
        drawn = f"varied[{self.plan.vary.index(name)}, lane]"
        return f"np.int32({drawn})" if self.is_whole(name) else drawn

    def is_whole(self, name: str) -> bool:
        """Return whether a parameter is a whole number."""
        return isinstance(self.plan.environment.params._field_defaults[name], int)  # type: ignore[attr-defined]

    def _others(self, name: str, suffix: str) -> str:
        """Return the states of a group, or their sums or maxima."""
        for group in self.groups:
            if name == group.name:
                return self.state(group, "0" if group.size == 1 else ":", suffix)
            for kind, fields in (("sum", group.sums), ("max", group.maxima)):
                if name == f"{group.name}_{kind}":
                    made = self.names.define(f"{name}_Fields", f'namedtuple("{name}_Fields", {fields!r})')
                    return f"{made}({', '.join(f'{name}[{n}, lane]' for n in range(len(fields)))})"
        for found in self.plan.environment.indices:
            if name == found.name:
                made = self.names.define(f"{name}_Index", f'namedtuple("{name}_Index", {("first", "actor", *found.fields)!r})')
                columns = [f"{name}_first[:{found.cells + 1}, lane]", f"{name}_actor[:, lane]"]
                columns += [f"{name}_copies[{n}, :, lane]" for n in range(len(found.fields))]
                return f"{made}({', '.join(columns)})"
        raise AssertionError(name)

    def _action(self, group: Group) -> str:
        space = group.action
        values = [self.entry(group, "action", n, space.components) for n in range(space.components)]
        n = len(space.choices)
        values[n:] = [self._scaled(v, low, high) for v, (low, high) in zip(values[n:], space.bounds(), strict=True)]
        return f"({', '.join(values)},)" if space.shape else values[0]

    def _scaled(self, value: str, low: float, high: float) -> str:
        """Map -1..1 to low..high; if a bound is infinite, clip at the other one, if that is finite. A caller's are only clipped."""
        lowest, highest = f"np.float32({low!r})", f"np.float32({high!r})"
        bounded_below, bounded_above = low != -float("inf"), high != float("inf")
        if bounded_below and bounded_above and self.plan.by_caller:
            return f"{self.names.use('clip', clip)}({value}, {lowest}, {highest})"
        if bounded_below and bounded_above:
            return f"{self.names.use('to_bounds', to_bounds)}({value}, {lowest}, {highest})"
        if bounded_below:
            return f"max({value}, {lowest})"
        return f"min({value}, {highest})" if bounded_above else value

    # Ends of episodes -----------------------------------------------------------------------------------------------------

    def late(self) -> str:
        """Return the condition under which an episode is cut off after `elapsed` steps."""
        late = "np.int32(elapsed) >= time_limit"
        return f"({late} or np.int64(now) == cut_at[0, lane])" if self.plan.staggered else late

    def counts(self) -> str:
        """Return the condition under which an episode that ends is counted; empty: it always is.

        Not counted are those that a fault ends, and all of an environment up to the one that is cut off: short ones end more often then.
        """
        sound = "replaced[1, lane] == 0" if self.plan.replaces else ""
        whole = "np.int64(now) > cut_at[0, lane]" if self.plan.staggered else ""
        return " and ".join(filter(None, (sound, whole)))

    # Random numbers -------------------------------------------------------------------------------------------------------

    def rng(self, stream: str, group: Group | None = None) -> str:
        """Return the random numbers of a stream for the environment, or for this actor of a group."""
        source = self.names.define(stream, STREAMS[stream])
        if group:
            actors_before = sum(g.size for g in self.groups[: self.groups.index(group)])
            source += f" + {self.names.define(f'{group.name}_FIRST', str(actors_before))} + actor"
        rng = self.names.use("Rng", Rng)
        return f"{rng}(seed_low, seed_high, np.uint32(np.uint32({self.target.environment}) + first_env), now, np.uint32({source}))"

    # Reductions and indices -----------------------------------------------------------------------------------------------

    def reductions(self, functions: Iterable[Function]) -> str:
        """Return the statements that compute the sums, the maxima and the indices that are arguments of these functions."""
        asked = {name for function in functions for name in arguments(function)}
        found = []
        for group in self.groups:
            for kind, fields in (("sum", group.sums), ("max", group.maxima)):
                if f"{group.name}_{kind}" in asked:
                    found += [*(self._reduction(group, kind, n, name) for n, name in enumerate(fields)), self.target.barrier]
        found += [self._index(index) for index in self.plan.environment.indices if index.name in asked]
        return lines(*found)

    def _index(self, index: Index) -> str:
        """Return the statements that sort actors into the cells of an index and copy their fields in this order."""
        t, groups, name = self.target, self.plan.environment.indexed(index), index.name
        cells, copies = [], []
        for group in groups:
            before = sum(other.size for other in groups[: groups.index(group)])
            at = f"{name}_place[{before} + actor, lane]"
            place, call = self.call(group, index.cell)
            # A name of its own: Numba gives a name one type.
            cell = f"{group.name}_{name}_cell"
            cells.append(t.per_actor(group, place, f"{cell} = {call}", f"{at} = {cell} if {cell} >= 0 and {cell} < {index.cells} else -1"))
            numbers = {f.name: self._slot(group, f, "actor") for f in group.fields}
            moved = (f"{name}_copies[{n}, {name}_at, lane] = {numbers[field]}" for n, field in enumerate(index.fields))
            if index.fields:
                copies.append(t.per_actor(group, f"{name}_at = {at}", block(f"if {name}_at >= 0:", *moved)))
        sort = t.sort(name, index.cells, self.names)
        return lines(f"# Index {name}.", *cells, t.barrier, sort, t.barrier, *copies, t.barrier if copies else "")

    def _reduction(self, group: Group, kind: str, n: int, name: str) -> str:
        value = self._slot(group, next(f for f in group.fields if f.name == name), "actor")
        first, add = ("0.0", f"total += np.float32({value})") if kind == "sum" else ("-np.inf", f"total = max(total, np.float32({value}))")
        return self.target.per_reduction(
            n,
            f"total = np.float32({first})",
            block(f"for actor in range({group.size}):", add),
            f"{group.name}_{kind}[{n}, lane] = total",
        )


def seen(group: Group) -> list[tuple[str, int]]:
    """Return the arrays of what actors of a group see, and the entries of each for an actor: observations, and masks if it has them."""
    return [("obs", group.observation.size), *([("mask", group.masked_actions)] if group.mask else [])]


def choices_of(space: Space) -> list[tuple[int, int]]:
    """Return the first entry and the number of entries, among logits and mask entries, of each choice that makes an action."""
    return [(sum(space.choices[:n]), count) for n, count in enumerate(space.choices)]
