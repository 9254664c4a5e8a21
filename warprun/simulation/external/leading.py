"""What this process is in environments that are parallel programs. Light: their groups need MPI, and most processes are in none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from warprun.ranks import Layout
from warprun.simulation.external.recipe import Recipe

if TYPE_CHECKING:
    from warprun.simulation.external.group import Place

here: Place | None = None
"""The place of this process in the groups of a run or command; None if there are none."""


def attend() -> Place:
    """Let all processes be the group of rank 0 from now on; every process calls this."""
    global here
    from warprun.simulation.external.group import MPI, Place

    here = Place(Layout(0, 1, MPI.COMM_WORLD.size), attended=True)
    return here


def join(layout: Layout) -> Place:
    """Return the place of this process in the groups of a run; every process calls this."""
    global here
    from warprun.simulation.external.group import Place

    here = here or Place(layout, attended=False)
    return here


def make(recipe: Recipe, **num_envs: int) -> Any:
    """Return a new environment, if several ranks step it with the group that this process leads; whatever its code raises passes."""
    if recipe.ranks == 1:
        return recipe.make(**num_envs)
    assert here is not None, "no rank serves this process"
    return here.lead(recipe)


class Calls:
    """The calls that this process makes as the first rank of a group, if it is one."""

    def close(self) -> None:
        """Let the ranks that serve know that there are no more for now."""
        if here is not None:
            here.release()


@contextmanager
def leading() -> Iterator[None]:
    """Make calls of environments, and let the ranks that serve know the end."""
    try:
        yield
    finally:
        Calls().close()
