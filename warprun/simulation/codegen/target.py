"""The interface of the targets of code generation: kernels around their bodies, loops, indices and barriers.

State is stored in tiles [tile, slot, actor, lane]. Lanes are neighbouring environments: SIMD lanes on CPU, neighbouring threads on CUDA.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from warprun.environment import Environment, Group
from warprun.simulation import indexing
from warprun.simulation.codegen.templates import Names, block, fill, lines


class Target(ABC):
    """One way to run an environment: how its loops, indices and barriers are written."""

    name: ClassVar[str]
    imports: ClassVar[str]
    at: ClassVar[str]
    """Index of the environment in a row of a rollout array, as a kernel's body sees that row."""
    environment: str
    """Number of the environment."""
    barrier: ClassVar[str] = ""
    """Statement that waits for all threads of the environment."""
    begins_in_batches: ClassVar[bool] = False
    """Whether `advance` begins the next episodes of many environments together, after the step of all."""
    lane_loop: ClassVar[str] = ""
    """Statement at the beginning of a loop over lanes that becomes vectors, loops of the user within it included."""
    agree: ClassVar[str] = ""
    """Statement after which `sound` is False in all threads of the environment if it was in one."""

    @abstractmethod
    def lanes(self, environment: Environment) -> int:
        """Return the number of environments in a tile, a compile-time constant of the layout."""

    @abstractmethod
    def kernel(self, name: str, body: str, groups: tuple[Group, ...]) -> str:
        """Return the kernel `name` around its body."""

    @abstractmethod
    def rollout(self, groups: tuple[Group, ...]) -> str:
        """Return the kernels that run all steps of a rollout."""

    @abstractmethod
    def per_actor(self, group: Group, *body: str) -> str:
        """Return the loops that run `body` for all actors of a group in all environments."""

    @abstractmethod
    def per_environment(self, *body: str) -> str:
        """Return the loop that runs `body` once for every environment."""

    def tile(self, array: str, shape: tuple[int, ...]) -> str:
        """Return the part of an array of this shape, [tiles, ...], that belongs to the tile of a kernel's body."""
        return f"{array}[tile]"

    def part(self, width: int) -> str:
        """Return the slice of a flat row for the environments of a kernel's body, `width` numbers for each environment."""
        return ""

    def logits(self, group: Group) -> str:
        """Return the statement that defines the policy outputs of a group, [P, actor, environment]."""
        return f"{group.name}_logits = {group.name}_arrays.policy_output.T"

    def actors_of(self, group: Group, *body: str) -> str:
        """Return the loop over the actors of a group within one environment."""
        return self.per_actor(group, *body)

    def once(self, *body: str) -> str:
        """Return statements that one thread runs, within one environment."""
        return lines(*body)

    def per_reduction(self, n: int, *body: str) -> str:
        """Return the loop that runs reduction `n` of a group for every environment."""
        return self.per_environment(*body)

    def sort(self, name: str, cells: int, names: Names) -> str:
        """Return the statements that sort the actors of index `name`, whose cells are in NAME_place, see `indexing.sort`."""
        sort = names.use("sort_actors", indexing.sort_actors)
        return self.per_environment(f"{sort}({name}_place, {name}_first, {name}_actor, {cells}, lane)")

    def terminate(self, over: str) -> str:
        """Return the statement that ends the episode if `over` is true."""
        return block(f"if {over}:", f"terminated[{self.at}] = True")

    def note_end(self) -> str:
        """Return the statement that stores for `if_ended` whether an episode ends."""
        return ""

    def if_ended(self, reductions: str, body: str) -> str:
        """Return `body` for the environments whose episode ends, after the reductions that it needs."""
        return block(f"if terminated[{self.at}] or truncated[{self.at}]:", reductions, body)

    def per_ended(self, *body: str) -> str:
        """Return the loop that runs `body` for each environment whose episode ends, within `if_ended`."""
        return lines(*body)

    def if_unsound(self, body: str) -> str:
        """Return statements that one thread runs for each environment if `sound` is False."""
        return block("if not sound:", self.once(body))

    def replace_unsound(self, check: str, end: str) -> str:
        """Return `end` for the environments that are unsound; `check` checks one environment."""
        return block("if not sound:", end, "sound = True")

    def check(self, group: Group, width: int, statement: str) -> str:
        """Return a check of a row, `width` numbers for each actor; `statement` has placeholders for first number and actors."""
        return self.per_actor(group, fill(statement, first=index(group, self.at, 0, width), actors="1"))


def index(group: Group, at: str, component: int | str, width: int) -> str:
    """Return the index of a component of this actor in a flat row, `width` numbers for each actor."""
    # LLVM vectorises only if it knows the distance of neighbouring lanes, so the sizes are written as numbers.
    actor = operand(at) if group.size == 1 else f"({operand(at)} * {group.size} + actor)"
    return actor if width == 1 else f"{actor} * {width} + {component}"


def operand(at: str) -> str:
    """Return the number of an environment as an operand."""
    return at if at.isidentifier() else f"({at})"


def arrays(groups: tuple[Group, ...]) -> str:
    """Return the arguments of a kernel that hold the arrays of the groups."""
    return ", ".join(f"{group.name}_arrays" for group in groups)


def inferences(groups: tuple[Group, ...]) -> str:
    """Return the arguments of a rollout that hold the networks of the groups."""
    return ", ".join(f"{group.name}_inference" for group in groups)
