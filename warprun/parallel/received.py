"""The simulator of a learner: its rollouts are those that actors send."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from warprun.learning.communicator import Communicator
from warprun.parallel.exchange import LearnerExchange, RolloutBuffer, WeightsBuffer, copy
from warprun.parallel.world import World
from warprun.simulation.device import Device
from warprun.simulation.simulator import Act, Episodes
from warprun.simulation.trajectory import Trajectory, allocate
from warprun.spec import Spec
from warprun.state import Counter, State


@dataclass
class Tally:
    """Counts of a learner between two records."""

    began_s: float
    trained: int = 0
    """Rollouts that were learned from."""
    lag_sum: int = 0
    lag_max: int = 0
    bytes: int = 0
    learner_waited_s: float = 0.0
    actors_waited_s: float = 0.0
    actors_acted_s: float = 0.0
    unique: int = 0
    """Rollouts that were learned from for the first time."""


class ReceivedRollouts:
    """A `Simulator` of `n_envs` environments that actors step.

    A collection is one rollout, or, if `per_update` is larger, those of several actors side by side.
    """

    def __init__(
        self,
        world: World,
        weights: WeightsBuffer,
        *,
        spec: Spec,
        horizon: int,
        n_envs: int,
        per_update: int,
        total_steps: int,
        device: Device,
        clock: Callable[[], float],
        communicator: Communicator,
    ) -> None:
        """`n_envs`: of one rollout; `per_update`: rollouts that make a collection; `total_steps`: of the run.

        `communicator` is that of the learners.
        """
        self.spec, self.device, self.n_envs = spec, device, n_envs * per_update
        self._world, self._weights, self._clock, self._communicator = world, weights, clock, communicator
        self._envs, self._horizon, self._total_steps = n_envs, horizon, total_steps
        self._buffers = [RolloutBuffer(spec, horizon, n_envs) for _ in range(per_update)]
        self._copies = per_update > 1 or device.torch.type != "cpu"
        self.trajectory: Trajectory = self._buffers[0].trajectory
        if self._copies:
            self.trajectory = allocate(spec, horizon, self.n_envs, device.torch)
        self.trajectory.continues.fill_(False)  # actors begin new episodes
        self._has_collected = False
        self.is_whole = False
        """Whether all rollouts of the last collection have come; the others keep what was there before."""
        self._env_steps, self._rollouts, self._updates = Counter(), Counter(), Counter()
        self._sequences: dict[int, int] = {}
        """Number of the last rollout of each actor that was learned from."""
        self._newest: dict[int, int] = {}
        """The largest of these."""
        self._ended = np.zeros(3 + len(spec.groups))
        """Episodes, their steps, replaced environments, returns."""
        self._tally = Tally(clock())
        self._trained = self._reused = self._dropped = 0
        """Rollouts of this process that were learned from, learned from again, and too old to learn from."""

    def connect(self, exchange: Callable[[WeightsBuffer, RolloutBuffer], LearnerExchange], max_lag: int | None) -> None:
        """Make the exchange, together with all other ranks, for the buffers of weights and rollouts.

        Rollouts whose weights are older by more than `max_lag` updates are dropped.
        """
        self._exchange, self._max_lag = exchange(self._weights, self._buffers[0]), max_lag
        self._before = (self._rollouts.value, self._env_steps.value)
        self._exchange.begin(-(-(self._total_steps - self.env_steps) // (self._horizon * self._envs)))

    @property
    def steps(self) -> int:
        """Steps that every environment of a collection has taken."""
        return self._updates.value * self._horizon

    @property
    def rollouts(self) -> int:
        """Rollouts that were learned from."""
        return self._rollouts.value

    @property
    def env_steps(self) -> int:
        return self._env_steps.value

    def prepare(self) -> None:
        """Do nothing: the actors prepare their environments."""

    def reset(self) -> None:
        """Do nothing: the actors reset their environments."""

    def collect(self, act: Act, greedy: bool = False) -> Trajectory:
        """Publish the weights, and return the next rollout."""
        self._weights.pack(self._updates.value)
        waited_s, found = self._world.waited_s, 0
        received = taken = 1
        while received and not found:
            self._exchange.publish(self._weights)
            received = self._exchange.receive(self._buffers, act)
            found, taken = self._usable(received), taken + received
        self.is_whole = found == len(self._buffers)
        self._count_rollouts(taken - 1)
        self._communicator.contribute(found * self._envs)
        self._tally.learner_waited_s += self._world.waited_s - waited_s
        for number, rollout in enumerate(self._buffers[:found]):
            self._count(rollout)
            if self._copies:
                copy(rollout.trajectory, self.trajectory, number * self._envs)
        if len(self._buffers) == 1 and found:
            self._note_source(self._buffers[0])
        elif found:
            self.trajectory.continues.fill_(self._has_collected)
        self._has_collected = True
        self._updates.value += 1
        return self.trajectory

    def _count_rollouts(self, received: int) -> None:
        made, of_rollout = self._exchange.made(), self._horizon * self._envs
        if made is not None:
            rollouts, env_steps = self._before
            self._rollouts.value, self._env_steps.value = rollouts + made, env_steps + made * of_rollout
            return
        self._communicator.contribute(self.n_envs)  # every learner has a count
        rollouts = int(self._communicator.sum_(torch.tensor(float(received), dtype=torch.float64)))
        self._rollouts.value += rollouts
        self._env_steps.value += rollouts * of_rollout

    def _usable(self, received: int) -> int:
        """Return how many of the received rollouts are not too old to learn from."""
        if self._max_lag is None or received != 1 or self._lag(self._buffers[0]) <= self._max_lag:
            return received
        self._dropped += 1
        return 0

    def _lag(self, rollout: RolloutBuffer) -> int:
        """Return the updates since the weights that made a rollout."""
        return self._updates.value - int(rollout.header["version"])

    def episodes(self) -> Episodes:
        """Return the episodes of the actors that ended since the last call."""
        count, steps, replaced, *returns = self._ended.tolist()
        totals = zip(self.spec.groups, returns, strict=True)
        mean = {group.name: total / count if count else math.nan for group, total in totals}
        self._ended[:] = 0.0
        return Episodes(int(count), steps / count if count else math.nan, mean, int(replaced))

    def state(self) -> State:
        """Return the counters; the environments are those of the actors, and begin anew when a run continues."""
        counters = {"env_steps": self._env_steps, "rollouts": self._rollouts, "updates": self._updates}
        return {name: counter.tensor for name, counter in counters.items()}

    def fault(self, wait: bool = False) -> None:
        """Return None: the actors look for faults."""

    def close(self) -> None:
        """End the run for all actors."""
        self._exchange.close()
        self._world.part()

    def metrics(self) -> Mapping[str, float]:
        """Return what section "Records" of docs/parallel.md lists, since the last call."""
        tally, now, lost = self._tally, self._clock(), len(self._world.lost)
        elapsed, trained = max(now - tally.began_s, 1e-9), max(tally.trained, 1)
        acting = max(tally.actors_waited_s + tally.actors_acted_s, 1e-9)
        self._tally = Tally(now)
        return {
            "actors/rollouts": self._rollouts.value,
            "actors/rollouts_trained": self._trained,
            "actors/rollouts_reused": self._reused,
            "actors/rollouts_dropped": self._dropped,
            "actors/unique_rollouts_per_s": tally.unique / elapsed,
            "actors/lag_mean": tally.lag_sum / trained,
            "actors/lag_max": tally.lag_max,
            "actors/bytes_per_s": tally.bytes / elapsed,
            "actors/learner_waiting_share": tally.learner_waited_s / elapsed,
            "actors/actor_waiting_share": tally.actors_waited_s / acting,
            **({"actors/lost": lost} if lost else {}),
            **self._exchange.metrics(),
        }

    def _note_source(self, rollout: RolloutBuffer) -> None:
        """Say in the trajectory which actor made a rollout, and whether the one before is known."""
        actor, sequence = int(rollout.header["actor"]), int(rollout.header["sequence"])
        self.trajectory.source.fill_(actor)
        self.trajectory.continues.fill_(self._sequences.get(actor) == sequence - 1)
        self._sequences[actor] = sequence

    def _count(self, rollout: RolloutBuffer) -> None:
        tally, header, lag = self._tally, rollout.header, self._lag(rollout)
        tally.trained += 1
        tally.lag_sum, tally.lag_max = tally.lag_sum + lag, max(tally.lag_max, lag)
        tally.bytes += rollout.memory.nbytes
        tally.actors_waited_s += float(header["waited_s"])
        tally.actors_acted_s += float(header["acted_s"])
        self._trained += 1
        actor, sequence = int(header["actor"]), int(header["sequence"])
        # An actor's rollouts arrive in order, so one that is not newer was there before.
        if sequence > self._newest.get(actor, -1):
            tally.unique += 1
            self._newest[actor] = sequence
        else:
            self._reused += 1
        self._ended += (header["episodes"], header["episode_steps"], header["replaced"], *header["returns"])
