"""`concurrency=sync`: all actors roll out with the same weights; the learner waits for all of them, learns, and sends weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warprun.parallel.buffers import RolloutBuffer, WeightsBuffer
from warprun.parallel.messages import ROLLOUT, send_end, send_weights
from warprun.parallel.world import World
from warprun.simulation.simulator import Act


class SyncLearner:
    """A `LearnerExchange`: weights to all actors, a rollout from each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ranks = [world.layout.rank(actor) for actor in world.layout.actors_of(world.rank)]

    def begin(self, rollouts: int) -> None:
        """Do nothing: the learner counts the rounds."""

    def publish(self, weights: WeightsBuffer) -> None:
        """Send weights to all actors."""
        send_weights(self._world, weights, self._ranks)

    def receive(self, into: Sequence[RolloutBuffer], act: Act) -> int:
        """Receive the rollout of every actor, in their order."""
        pairs = zip(into, self._ranks, strict=True)
        self._world.wait_for([self._world.comm.Irecv(rollout.memory, rank, ROLLOUT) for rollout, rank in pairs])
        return len(into)

    def made(self) -> None:
        """Return None: all rollouts are received."""

    def metrics(self) -> Mapping[str, float]:
        """Return none."""
        return {}

    def close(self) -> None:
        """End the run for all actors, which wait for weights."""
        send_end(self._world, self._ranks)

    def free(self) -> None:
        """Do nothing."""
