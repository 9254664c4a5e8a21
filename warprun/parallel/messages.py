"""Protocols of messages between actors and their learner.

`concurrency=sync`: all actors roll out with the same weights; the learner waits for all of them, learns, and sends
weights. `concurrency=async`: an actor sends a rollout and gets fresh weights in answer; the learner takes rollouts in
the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from mpi4py import MPI

from warprun.errors import RankFailed
from warprun.parallel.exchange import OVER, LearnerExchange, RolloutBuffer, WeightsBuffer
from warprun.parallel.world import World
from warprun.simulation.simulator import Act

ROLLOUT, WEIGHTS, LEFT, OUTPUTS = 1, 2, 3, 4
"""Tags of messages; OUTPUTS: what the policy gives, in `seed`."""
END = np.array([OVER], np.int64)
"""What an actor gets in the place of weights at the end: only their version."""


class MessageActor:
    """An `ActorExchange`: weights, rollout, weights, rollout."""

    def __init__(self, world: World, weights: WeightsBuffer, act: Act) -> None:
        self._world, self._weights, self.act = world, weights, act
        self._learner = world.layout.learner_of(world.actor)

    def latest(self) -> bool:
        """Wait for weights or the end."""
        self._world.wait_for([self._world.comm.Irecv(self._weights.memory, self._learner, WEIGHTS)])
        return self._weights.version != OVER

    def send(self, rollout: RolloutBuffer) -> None:
        self._world.wait_for([self._world.comm.Isend(rollout.memory, self._learner, ROLLOUT)])


def send_left(world: World, why: str) -> None:
    """Tell the learner that this actor makes no rollout any more, in the place of a rollout."""
    learner = world.layout.learner_of(world.actor)
    world.wait_for([world.comm.Isend(bytearray(why.encode()), learner, LEFT)])


def send_weights(world: World, weights: WeightsBuffer, ranks: Iterable[int]) -> None:
    """Send weights to actors."""
    world.wait_for([world.comm.Isend(weights.memory, rank, WEIGHTS) for rank in ranks])


def send_end(world: World, ranks: Iterable[int]) -> None:
    """Tell actors that there is no rollout to make any more."""
    world.wait_for([world.comm.Isend(END, rank, WEIGHTS) for rank in ranks])


def ranks_of_actors(world: World) -> list[int]:
    """Return the ranks of the actors of this learner."""
    return [world.layout.rank(actor) for actor in world.layout.actors_of(world.rank)]


class SyncLearner(LearnerExchange):
    """Weights to all actors, a rollout from each."""

    def __init__(self, world: World) -> None:
        self._world, self._ranks = world, ranks_of_actors(world)

    def publish(self, weights: WeightsBuffer) -> None:
        send_weights(self._world, weights, self._ranks)

    def receive(self, into: Sequence[RolloutBuffer], act: Act) -> int:
        """Receive the rollout of every actor, in their order."""
        pairs = zip(into, self._ranks, strict=True)
        self._world.wait_for([self._world.comm.Irecv(rollout.memory, rank, ROLLOUT) for rollout, rank in pairs])
        return len(into)

    def close(self) -> None:
        send_end(self._world, self._ranks)


class AsyncLearner(LearnerExchange):
    """Rollouts in the order of arrival, weights in answer.

    The answer to a rollout comes after the update that learned from it. So the lag of a rollout is at most the number of
    rollouts of other actors that the learner takes meanwhile, and 0 with one actor.
    """

    def __init__(self, world: World, tolerated: int) -> None:
        """`tolerated`: how many actors may leave the run."""
        self._world, self._left, self._tolerated = world, 0, tolerated
        self._waiting = ranks_of_actors(world)
        """Ranks of actors that wait for an answer."""
        self._acting: set[int] = set()
        """Ranks of actors that make a rollout."""

    def begin(self, rollouts: int) -> None:
        """Take the share of this learner in the rollouts that the run needs."""
        share, more = divmod(rollouts, self._world.layout.learners)
        self._left = share + (self._world.rank < more)

    def publish(self, weights: WeightsBuffer) -> None:
        """Answer as many actors with weights as rollouts are still needed.

        The others wait for the end, or for one that leaves.
        """
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

    def close(self) -> None:
        """Receive the rollouts that are still made, and end the run for all actors."""
        while self._acting:
            self._receive(None)
        send_end(self._world, self._waiting)

    def _receive(self, into: RolloutBuffer | None) -> bool:
        """Receive one rollout; without a buffer throw it away. Return False if an actor has left instead."""
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
        """Note that an actor has left; `replaces`: let another make its rollout. Raises RankFailed if too many have."""
        world = self._world
        world.lost.append(f"{world.layout.name(world.layout.leader(world.layout.actor(rank)))}: {why}")
        if len(world.lost) > self._tolerated or not (self._acting or self._waiting):
            raise RankFailed(world.lost[-1])
        if replaces:
            self._left += 1
            self.publish(self._weights)
