"""The ranks of a run: who they are, what they agree on at the start, and how they wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mpi4py import MPI

from warprun import agreement
from warprun.errors import one_line
from warprun.parallel.watch import Watch, serve
from warprun.ranks import Layout

SHORTEST_S, LONGEST_S = 2e-5, 1e-3
"""Sleeps between two looks at whether something has arrived."""
LOOK_S = 0.05
"""Seconds between two looks at whether another rank was lost."""


@dataclass
class World:
    """The ranks of a run."""

    everyone: MPI.Intracomm
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

    @property
    def process(self) -> int:
        """Number of this process among all."""
        return int(self.everyone.rank)

    @property
    def rank(self) -> int:
        """Number of this process among those that exchange rollouts, see `Layout.rank`."""
        return int(self.comm.rank)

    @property
    def is_learner(self) -> bool:
        """Whether this process learns."""
        return self.process < self.layout.learners

    @property
    def serves(self) -> bool:
        """Whether this process only serves the environments of an actor."""
        return self.layout.serves(self.process)

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

    def wait_for(self, requests: list[MPI.Request]) -> None:
        """Wait until all requests are done."""
        with taken_back(requests):
            self.wait(lambda: bool(MPI.Request.Testall(requests)))

    def wait_for_some(self, requests: list[MPI.Request], patience_s: float) -> list[int]:
        """Wait until a request is done, and then at most `patience_s` for all others; return the numbers of those that are done.

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

    def share(self, text: str) -> str:
        """Return the text of rank 0."""
        return agreement.share(self.everyone, text)

    def compare(self, own: bytes | None, problem: str) -> None:
        """Raise if `own` is not the same in all processes that have one."""
        first = agreement.share(self.everyone, own.hex() if own else "")
        same = own is None or first == own.hex()
        agreement.agree(self.everyone, "" if same else problem, self.layout.name, None)

    def barrier_of_learners(self) -> None:
        """Wait until all learners are here."""
        self.wait(self.peers.Ibarrier().Test)

    def barrier(self) -> None:
        """Wait until all that exchange rollouts are here."""
        request = self.comm.Ibarrier()
        self.wait(request.Test)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do something in all processes or in none: if it fails in one, it fails in all, and rank 0 raises the error of the first.

        Every process enters the same contexts in the same order.
        """
        try:
            yield
        except Exception as error:
            agreement.agree(self.everyone, one_line(error), self.layout.name, error)
            raise
        agreement.agree(self.everyone, "", self.layout.name, None)


def meet(everyone: MPI.Intracomm, layout: Layout, timeout_s: float) -> World:
    """Return the world of a run; every process calls this."""
    connect = serve(everyone.rank, lambda text: agreement.share(everyone, text))
    watch = Watch(layout.name, everyone.rank, layout.size, timeout_s, connect)
    comm = MPI.Intracomm(everyone.Split(layout.serves(everyone.rank)))
    return World(everyone, comm, layout, watch, MPI.Intracomm(comm.Split(everyone.rank < layout.learners)))


@contextmanager
def taken_back(requests: list[MPI.Request]) -> Iterator[None]:
    """Take back requests that are not done after an error, such as that another rank has failed: the end of MPI would wait for them."""
    try:
        yield
    except BaseException:
        for request in requests:
            if request != MPI.REQUEST_NULL:
                request.Cancel()
                request.Free()
        raise
