"""The protocols by the names of `concurrency`."""

from __future__ import annotations

import torch

from warprun.config.concurrency import AsyncConfig, ConcurrencyConfig, RmaConfig, SeedConfig
from warprun.parallel.exchange import ActorExchange, LearnerExchange, RolloutBuffer, WeightsBuffer
from warprun.parallel.messages import AsyncLearner, MessageActor, SyncLearner
from warprun.parallel.rma import RmaActor, RmaLearner, Shared, push, replace, takes
from warprun.parallel.seed import SeedActor, SeedLearner
from warprun.parallel.world import World
from warprun.simulation.simulator import Act


def actor_exchange(
    world: World, concurrency: ConcurrencyConfig, weights: WeightsBuffer, rollout: RolloutBuffer, act: Act | None
) -> ActorExchange:
    """Return the side of an actor, whose policy is `act`; None: it has none, because the learner acts.

    All ranks call this or `learner_exchange` together, with buffers of the same sizes.
    """
    if act is None:
        return SeedActor(world, weights, rollout)
    if isinstance(concurrency, RmaConfig):
        show = push if concurrency.window == "queue" else replace
        return RmaActor(_shared(world, concurrency, weights, rollout), weights, act, show)
    return MessageActor(world, weights, act)


def learner_exchange(
    world: World,
    concurrency: ConcurrencyConfig,
    weights: WeightsBuffer,
    rollout: RolloutBuffer,
    device: torch.device,
    seed: int,
) -> LearnerExchange:
    """Return the side of a learner, whose policy is on `device`; `seed` is that of what it draws."""
    if isinstance(concurrency, SeedConfig):
        return SeedLearner(world, rollout, device, 1e-6 * concurrency.batch_us)
    if isinstance(concurrency, RmaConfig):
        shared, window = _shared(world, concurrency, weights, rollout), concurrency.window
        return RmaLearner(shared, takes(window, shared, seed), consumes=window == "queue")
    if isinstance(concurrency, AsyncConfig):
        return AsyncLearner(world, concurrency.tolerate_actors)
    return SyncLearner(world)


def _shared(world: World, concurrency: RmaConfig, weights: WeightsBuffer, rollout: RolloutBuffer) -> Shared:
    places = concurrency.queue if concurrency.window == "queue" else 0
    return Shared(world, weights.memory.nbytes, rollout.memory.nbytes, places)
