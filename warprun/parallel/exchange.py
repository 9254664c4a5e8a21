"""What a protocol is: how a rollout gets from an actor to its learner, and weights back. One small file for each protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from warprun.parallel.buffers import RolloutBuffer, WeightsBuffer
from warprun.simulation.simulator import Act
from warprun.simulation.trajectory import Trajectory


class ActorExchange(Protocol):
    """The side of an actor."""

    def act(self, trajectory: Trajectory, row: int) -> None:
        """Write what the policy gives for the observations of row `row`, see `simulator.Act`: the copy of this rank, or that of the
        learner."""

    def latest(self) -> bool:
        """Bring the newest weights into the buffer, waiting for them if the protocol does; return whether there is a rollout to make."""

    def send(self, rollout: RolloutBuffer) -> None:
        """Give a rollout to the learner; the buffer can be used again afterwards."""

    def free(self) -> None:
        """Give back what ranks share, after all have ended; every rank calls this."""


class LearnerExchange(Protocol):
    """The side of a learner."""

    def begin(self, rollouts: int) -> None:
        """Begin: all actors of the run make `rollouts` rollouts from now on, unless `close` is called before."""

    def publish(self, weights: WeightsBuffer) -> None:
        """Make weights available to actors; the buffer can be used again afterwards."""

    def receive(self, into: Sequence[RolloutBuffer], act: Act) -> int:
        """Bring the next rollout into each buffer, and return how many there were: fewer than asked for only at the end of the run.

        `act` is the policy of this learner, for protocols in which the learner acts.
        """

    def made(self) -> int | None:
        """Return how many rollouts the actors have made since `begin`; None: those that were received."""

    def metrics(self) -> Mapping[str, float]:
        """Return metrics that only this protocol has, since the last call."""

    def close(self) -> None:
        """End the run for the actors of this learner."""

    def free(self) -> None:
        """Give back what ranks share, after all have ended; every rank calls this."""
