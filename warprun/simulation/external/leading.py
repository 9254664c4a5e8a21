"""What this process is in environments that are parallel programs. Light: their groups need MPI, and most processes are in none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warprun.simulation.external.group import Place

here: Place | None = None
"""The place of this process in the groups of a run or command; None if there are none."""


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
