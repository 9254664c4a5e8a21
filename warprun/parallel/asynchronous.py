"""`concurrency=async`: an actor sends a rollout and gets fresh weights in answer; the learner takes rollouts in the order of arrival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpi4py import MPI

from warprun.errors import RankFailed
from warprun.parallel.buffers import RolloutBuffer, WeightsBuffer
from warprun.parallel.messages import LEFT, send_end, send_weights
from warprun.parallel.world import World
from warprun.simulation.simulator import Act


class AsyncLearner:
    """A `LearnerExchange`.

    The answer to a rollout comes after the update that learned from it. So the lag of a rollout is at most the number of rollouts of
    other actors that the learner takes meanwhile, and 0 with one actor.
    """

    def __init__(self, world: World, tolerated: int = 0) -> None:
        """`tolerated`: how many actors may leave the run."""
        self._world, self._left, self._tolerated = world, 0, tolerated
        self._waiting = [world.layout.rank(actor) for actor in world.layout.actors_of(world.rank)]
        """Ranks of actors that wait for an answer."""
        self._acting: set[int] = set()
        """Ranks of actors that make a rollout."""

    def begin(self, rollouts: int) -> None:
        """Take the share of this learner in the rollouts that the run needs."""
        share, more = divmod(rollouts, self._world.layout.learners)
        self._left = share + (self._world.rank < more)

    def publish(self, weights: WeightsBuffer) -> None:
        """Answer as many actors with weights as rollouts are still needed; the others wait for the end, or for one that leaves."""
        self._weights = weights
        going_on, self._waiting = self._waiting[: self._left], self._waiting[self._left :]
        send_weights(self._world, weights, going_on)
        self._left -= len(going_on)
        self._acting.update(going_on)

    def receive(self, into: Sequence[RolloutBuffer], act: Act) -> int:
        """Receive rollouts in the order of their arrival."""
        found = 0
        while found < len(into) and self._acting:
            found += self._receive(into[found])
        return found

    def made(self) -> None:
        """Return None: all rollouts are received."""

    def metrics(self) -> Mapping[str, float]:
        """Return none."""
        return {}

    def close(self) -> None:
        """Receive the rollouts that are still made, and end the run for all actors."""
        while self._acting:
            self._receive(None)
        send_end(self._world, self._waiting)

    def free(self) -> None:
        """Do nothing."""

    def _receive(self, into: RolloutBuffer | None) -> bool:
        """Receive one rollout; without a buffer for it, throw it away. Return False if an actor has left instead."""
        comm, status = self._world.comm, MPI.Status()
        self._world.wait(lambda: bool(comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)))
        rank, has_left = status.Get_source(), status.Get_tag() == LEFT
        memory = into.memory if into and not has_left else bytearray(status.Get_count(MPI.BYTE))
        self._world.wait_for([comm.Irecv(memory, rank, status.Get_tag())])
        self._acting.remove(rank)
        if has_left:
            self._go_on_without(rank, bytes(memory).decode(), into is not None)
            return False
        self._waiting.append(rank)
        return True

    def _go_on_without(self, rank: int, why: str, replaces: bool) -> None:
        """Note that an actor has left; `replaces`: let another one make its rollout. Raises RankFailed if it is one too many."""
        world = self._world
        world.lost.append(f"{world.layout.name(world.layout.leader(world.layout.actor(rank)))}: {why}")
        if len(world.lost) > self._tolerated or not (self._acting or self._waiting):
            raise RankFailed(world.lost[-1])
        if replaces:
            self._left += 1
            self.publish(self._weights)
