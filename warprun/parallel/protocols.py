"""The protocols of actors and learners, by the names of `concurrency`: a new one is an entry here and its two sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from warprun.config.concurrency import AsyncConfig, ConcurrencyConfig, RmaConfig, SeedConfig
from warprun.parallel.central_inference import SeedActor, SeedLearner
from warprun.parallel.exchange import ActorExchange, LearnerExchange, RolloutBuffer, WeightsBuffer
from warprun.parallel.messages import AsyncLearner, MessageActor, SyncLearner
from warprun.parallel.rma import RmaActor, RmaLearner, Shared, push, replace, takes
from warprun.parallel.world import World
from warprun.simulation.simulator import Act


class End(NamedTuple):
    """The end of a connection in this process. All processes make one together, with buffers of the same sizes."""

    world: World
    concurrency: ConcurrencyConfig
    weights: WeightsBuffer
    rollout: RolloutBuffer


class Sides(NamedTuple):
    """The two sides of a protocol."""

    actor: Callable[[End, Act | None], ActorExchange]
    """The second argument is the policy of the actor; None: learners act."""
    learner: Callable[[End, torch.device, int], LearnerExchange]
    """The policy is on this device; the number is the seed of what the learner draws."""


def seed_learner(end: End, device: torch.device, seed: int) -> LearnerExchange:
    """Return a learner that acts for its actors."""
    settings = end.concurrency
    assert isinstance(settings, SeedConfig)
    return SeedLearner(end.world, end.rollout, device, 1e-6 * settings.batch_us)


def async_learner(end: End, device: torch.device, seed: int) -> LearnerExchange:
    """Return a learner that takes rollouts in the order of their arrival."""
    settings = end.concurrency
    assert isinstance(settings, AsyncConfig)
    return AsyncLearner(end.world, settings.tolerate_actors)


def rma_actor(end: End, act: Act | None) -> ActorExchange:
    """Return an actor that reads weights from shared memory and shows its rollouts there."""
    assert act
    shared, window = _shared(end)
    return RmaActor(shared, end.weights, act, push if window == "queue" else replace)


def rma_learner(end: End, device: torch.device, seed: int) -> LearnerExchange:
    """Return a learner that takes rollouts out of shared memory."""
    shared, window = _shared(end)
    return RmaLearner(shared, takes(window, shared, seed), consumes=window == "queue")


def _shared(end: End) -> tuple[Shared, str]:
    """Return the shared memory, and how learners take rollouts from it."""
    settings = end.concurrency
    assert isinstance(settings, RmaConfig)
    places = settings.queue if settings.window == "queue" else 0
    return Shared(end.world, end.weights.memory.nbytes, end.rollout.memory.nbytes, places), settings.window


def message_actor(end: End, act: Act | None) -> ActorExchange:
    """Return an actor that gets weights and sends rollouts as messages."""
    assert act
    return MessageActor(end.world, end.weights, act)


PROTOCOLS: Mapping[str, Sides] = {
    "sync": Sides(message_actor, lambda end, device, seed: SyncLearner(end.world)),
    "seed": Sides(lambda end, act: SeedActor(end.world, end.weights, end.rollout), seed_learner),
    "async": Sides(message_actor, async_learner),
    "rma": Sides(rma_actor, rma_learner),
}
