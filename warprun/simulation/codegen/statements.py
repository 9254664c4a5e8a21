"""The text of a kernel module, and what differs between targets: loops, indices, barriers.

    cpu     one thread owns a tile of environments; `for actor ... for lane ...` loops, of which LLVM vectorises the inner one
    thread  CUDA, one actor per environment: one GPU thread runs one environment, no loops
    block   CUDA, several actors per environment: one block runs one environment, its threads share the actors, a barrier
            stands between phases

State lies in tiles [tile, slot, actor, lane]. Lanes are neighbouring environments: SIMD lanes on CPU, neighbouring threads on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from warprun.environment import Environment, Group

Target = Literal["cpu", "thread", "block"]


def lanes(target: Target, environment: Environment) -> int:
    """Return how many environments lie side by side in a tile: a compile-time constant of the layout."""
    if target == "block":
        return 1  # the threads of a block are actors, so actors lie side by side
    if target == "thread":
        return 32  # a warp
    # A tile should stay in the first-level cache; 64 lanes are four AVX-512 vectors of float32.
    slots = sum(group.size * sum(f.slots for f in group.fields) for group in environment.groups)
    return 64 if slots <= 128 else 16


@dataclass
class Statements:
    """Collects the lines of a module for one target."""

    environment: Environment
    target: Target
    lines: list[str] = field(default_factory=list, init=False)
    depth: int = field(default=0, init=False)
    functions: dict[str, Any] = field(default_factory=dict, init=False)
    """Globals of the module: the functions and classes that it uses, by name."""

    def use(self, name: str, value: Any) -> str:
        """Give the module a global and return its name; functions of the same name and other content get a number."""
        unique, n = name, 1
        while self.functions.get(unique, value) is not value:
            n += 1
            unique = f"{name}{n}"
        self.functions[unique] = value
        return unique

    def use_function(self, group: Group, function: Callable[..., Any]) -> str:
        """Give the module a function of the environment and return its name, which ends as no array, scalar or local does.

        Groups and functions can therefore be called anything. The names of arrays begin with a group's name and end with one of a
        fixed set of words, none of which is the end of another.
        """
        written = function.__name__ if function.__name__.isidentifier() else "lambda"
        return self.use(f"{group.name}_{written}_function", function)

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def gap(self) -> None:
        """Leave two lines free, as between functions."""
        self.line()
        self.line()

    def comment(self, text: str) -> None:
        self.line(f"# {text}")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1

    # Loops, indices and barriers --------------------------------------------------------------------------------------------

    @property
    def part(self) -> str:
        """Cut a row of a rollout array down to this tile, so that the lane is its index."""
        return "[first:last]" if self.target == "cpu" else ""

    def rows(self, group: Group, width: int = 1) -> str:
        """Cut a flat row [N * A * width] of a rollout array down to this tile."""
        count = group.size * width
        return f"[first * {count} : last * {count}]" if self.target == "cpu" else ""

    def entry(self, group: Group, array: str, component: int | str = 0, width: int = 1) -> str:
        """Name the number of this actor in a flat row of a rollout array."""
        return f"{group.name}_{array}[{self.index(group, self.at, component, width)}]"

    def index(self, group: Group, at: str, component: int | str, width: int) -> str:
        # With the sizes written out LLVM knows how far neighbouring lanes are apart, without which it vectorises nothing.
        actor = f"({at})" if group.size == 1 else f"(({at}) * {group.size} + actor)"
        return actor if width == 1 else f"{actor} * {width} + {component}"

    @property
    def at(self) -> str:
        """Index of the environment in a row of a rollout array."""
        return "lane" if self.target == "cpu" else "env"

    @contextmanager
    def per_actor(self, group: Group) -> Iterator[None]:
        if self.target == "cpu":
            with self.block(f"for actor in range({group.size}):"), self.block("for lane in range(count):"):
                yield
        elif self.target == "block":
            with self.block(f"for actor in range(thread, {group.size}, threads):"):
                yield
        else:
            yield

    @contextmanager
    def per_environment(self) -> Iterator[None]:
        if self.target == "cpu":
            with self.block("for lane in range(count):"):
                yield
        else:
            with self.one_thread():
                yield

    @contextmanager
    def per_reduction(self, n: int) -> Iterator[None]:
        if self.target == "cpu":
            with self.block("for lane in range(count):"):
                yield
        elif self.target == "block":
            with self.block(f"if thread == {n} % threads:"):
                yield
        else:
            yield

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        if self.target == "block":
            with self.block("if thread == 0:"):
                yield
        else:
            yield

    def barrier(self) -> None:
        if self.target == "block":
            self.line("cuda.syncthreads()")
