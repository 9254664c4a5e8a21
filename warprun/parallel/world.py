"""The ranks of learners and actors: who they are, and how they wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from mpi4py import MPI

from warprun.parallel.store import make_store
from warprun.parallel.watch import Watch
from warprun.processes import Layout, MpiRanks

SHORTEST_S, LONGEST_S = 2e-5, 1e-3
"""Sleeps between two looks at whether something has arrived."""
LOOK_S = 0.05
"""Seconds between two looks at whether another rank was lost."""


@dataclass
class World:
    """The ranks of a run."""

    ranks: MpiRanks
    """All processes."""
    comm: MPI.Intracomm
    """Those that exchange rollouts: learners and actors, in the order of `Layout.rank`. In the others: these."""
    layout: Layout
    watch: Watch
    peers: MPI.Intracomm
    """The learners; in an actor the actors."""
    lost: list[str] = field(default_factory=list, init=False)
    """Actors that this learner goes on without, each with the reason."""
    waited_s: float = field(default=0.0, init=False)
    """Seconds that this rank has waited for others."""
    shared: ExitStack = field(default_factory=ExitStack, init=False)
    """Gives back what ranks share, after all have ended."""

    @property
    def process(self) -> int:
        """Number of this process among all."""
        return self.ranks.rank

    @property
    def rank(self) -> int:
        """Number of this process among those that exchange rollouts, see `Layout.rank`."""
        return int(self.comm.rank)

    @property
    def is_learner(self) -> bool:
        """Whether this process learns."""
        return self.process < self.layout.learners

    @property
    def actor(self) -> int:
        """Number of the actor that this process is, or serves."""
        return self.layout.actor_of(self.process)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Wait until `is_done`. Raises RankFailed as soon as another rank has failed."""
        began = looked = time.monotonic()
        pause = SHORTEST_S
        while not is_done():
            # MPI's own waiting would take all of a core, which on a laptop another rank needs.
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_S)
            now = time.monotonic()
            if now - looked > LOOK_S:
                self.watch.check()
                looked = now
        self.waited_s += time.monotonic() - began

    def wait_for(self, requests: Sequence[MPI.Request]) -> None:
        """Wait until all requests are done."""
        with taken_back(requests):
            self.wait(lambda: bool(MPI.Request.Testall(requests)))

    def wait_for_some(self, requests: Sequence[MPI.Request], patience_s: float) -> list[int]:
        """Wait until a request is done, and then at most `patience_s` for all others; return the numbers of those done.

        The caller takes back what is left (`taken_back`).
        """
        done: list[int] = []

        def look() -> bool:
            done.extend(MPI.Request.Testsome(requests) or ())
            return bool(done)

        self.wait(look)
        deadline_s = time.monotonic() + patience_s
        self.wait(lambda: look() and (all(r == MPI.REQUEST_NULL for r in requests) or time.monotonic() >= deadline_s))
        return done

    def barrier(self) -> None:
        """Wait until all that exchange rollouts are here."""
        self.wait(self.comm.Ibarrier().Test)

    def part(self) -> None:
        """Wait until all that exchange rollouts have ended, and give back what they share."""
        self.barrier()
        self.shared.close()


def meet(everyone: MPI.Intracomm, layout: Layout, timeout_s: float) -> World:
    """Return the world of a run; every process calls this."""
    ranks = MpiRanks(everyone, layout.name)
    watch = Watch(layout.name, ranks.rank, layout.size, timeout_s, make_store(ranks.rank, ranks.share))
    comm = MPI.Intracomm(everyone.Split(layout.serves(ranks.rank)))
    return World(ranks, comm, layout, watch, MPI.Intracomm(comm.Split(ranks.rank < layout.learners)))


@contextmanager
def taken_back(requests: Sequence[MPI.Request]) -> Iterator[None]:
    """Take back requests that are not done after an error, such as that another rank has failed.

    The end of MPI would wait for them.
    """
    try:
        yield
    except BaseException:
        for request in requests:
            if request != MPI.REQUEST_NULL:
                request.Cancel()
                request.Free()
        raise
