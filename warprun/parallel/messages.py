"""Messages between learners and actors, as `sync` and `async` send them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from warprun.parallel.buffers import OVER, RolloutBuffer, WeightsBuffer
from warprun.parallel.world import World
from warprun.simulation.simulator import Act

ROLLOUT, WEIGHTS, LEFT = 1, 2, 3
"""Tags."""
END = np.array([OVER], np.int64)
"""What an actor gets in the place of weights at the end: only their version."""


class MessageActor:
    """An `ActorExchange`: weights, rollout, weights, rollout."""

    def __init__(self, world: World, weights: WeightsBuffer, act: Act) -> None:
        self._world, self._weights, self.act = world, weights, act
        self._learner = world.layout.learner_of(world.layout.actor(world.rank))

    def latest(self) -> bool:
        """Wait for weights or the end."""
        self._world.wait_for([self._world.comm.Irecv(self._weights.memory, self._learner, WEIGHTS)])
        return self._weights.version != OVER

    def send(self, rollout: RolloutBuffer) -> None:
        """Send a rollout."""
        self._world.wait_for([self._world.comm.Isend(rollout.memory, self._learner, ROLLOUT)])

    def free(self) -> None:
        """Do nothing."""


def send_left(world: World, why: str) -> None:
    """Tell the learner that this actor makes no rollout any more, in the place of a rollout."""
    learner = world.layout.learner_of(world.layout.actor(world.rank))
    world.wait_for([world.comm.Isend(bytearray(why.encode()), learner, LEFT)])


def send_weights(world: World, weights: WeightsBuffer, ranks: Iterable[int]) -> None:
    """Send weights to actors."""
    world.wait_for([world.comm.Isend(weights.memory, rank, WEIGHTS) for rank in ranks])


def send_end(world: World, ranks: Iterable[int]) -> None:
    """Tell actors that there is no rollout to make any more."""
    world.wait_for([world.comm.Isend(END, rank, WEIGHTS) for rank in ranks])
