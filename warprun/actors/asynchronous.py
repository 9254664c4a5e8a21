"""`concurrency=async`: an actor sends a rollout and gets fresh weights in answer; the learner takes rollouts in the order of arrival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpi4py import MPI

from warprun.actors.buffers import RolloutBuffer, WeightsBuffer
from warprun.actors.messages import ROLLOUT, send_end, send_weights
from warprun.actors.world import World
from warprun.simulation.simulator import Act


class AsyncLearner:
    """A `LearnerExchange`.

    The answer to a rollout comes after the update that learned from it. So the lag of a rollout is at most the number of rollouts of
    other actors that the learner takes meanwhile, and 0 with one actor.
    """

    def __init__(self, world: World) -> None:
        self._world, self._left = world, 0
        self._waiting = [world.layout.rank(actor) for actor in world.layout.actors_of(world.rank)]
        """Ranks of actors that wait for an answer."""
        self._acting: set[int] = set()
        """Ranks of actors that make a rollout."""

    def begin(self, rollouts: int) -> None:
        """Take the share of this learner in the rollouts that the run needs."""
        share, more = divmod(rollouts, self._world.layout.learners)
        self._left = share + (self._world.rank < more)

    def publish(self, weights: WeightsBuffer) -> None:
        """Answer actors: with weights, or with the end if no more rollouts are needed."""
        going_on = self._waiting[: self._left]
        send_weights(self._world, weights, going_on)
        send_end(self._world, self._waiting[len(going_on) :])
        self._left -= len(going_on)
        self._acting.update(going_on)
        self._waiting = []

    def receive(self, into: Sequence[RolloutBuffer], act: Act) -> int:
        """Receive rollouts in the order of their arrival."""
        found = min(len(into), len(self._acting))
        for rollout in into[:found]:
            self._receive(rollout)
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

    def _receive(self, into: RolloutBuffer | None) -> None:
        """Receive one rollout; without a buffer for it, throw it away."""
        comm, status = self._world.comm, MPI.Status()
        self._world.wait(lambda: bool(comm.Iprobe(MPI.ANY_SOURCE, ROLLOUT, status)))
        rank = status.Get_source()
        memory = into.memory if into else bytearray(status.Get_count(MPI.BYTE))
        self._world.wait_for([comm.Irecv(memory, rank, ROLLOUT)])
        self._acting.remove(rank)
        self._waiting.append(rank)
