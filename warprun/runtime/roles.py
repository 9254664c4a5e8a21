"""What the ranks of a run of learners and actors do: the simulator of a learner, and the life of an actor."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed as dist

from warprun import signals
from warprun.actors.buffers import Origin, RolloutBuffer, WeightsBuffer, fingerprint
from warprun.actors.protocols import actor_exchange, learner_exchange
from warprun.actors.received import ReceivedRollouts
from warprun.actors.seed import Exploration
from warprun.actors.world import World
from warprun.concurrency.communicator import Communicator
from warprun.concurrency.distributed import Distributed
from warprun.concurrency.single import SingleProcess
from warprun.config.schema import AsyncConfig, Config, SeedConfig
from warprun.learning.interfaces import Agent
from warprun.runtime.build import Setup, make_agent, make_simulator, prepare, set_up
from warprun.runtime.orders import Order, take
from warprun.runtime.ranks import begin
from warprun.runtime.sentinel import refuse
from warprun.seeds import derived_seed
from warprun.simulation.device import choose


def rollout_envs(config: Config, world: World) -> int:
    """Return the environments of an actor."""
    return config.n_envs // world.layout.actors


def make_learner(setup: Setup, world: World, clock: Callable[[], float]) -> tuple[Agent, ReceivedRollouts]:
    """Return the agent of a learner and its simulator, which is what actors send; `clock` returns the seconds of the run."""
    config, n_envs = setup.config, rollout_envs(setup.config, world)
    together = 1 if isinstance(config.concurrency, AsyncConfig) else len(world.layout.actors_of(world.rank))
    agent = make_agent(setup, n_envs * together, world.layout.actors if together == 1 else 1)
    simulator = ReceivedRollouts(
        world,
        WeightsBuffer(Exploration(agent.exploration).policy_state() if _learner_acts(config) else agent.policy_state()),
        spec=setup.environment.spec,
        horizon=config.agent.horizon,
        n_envs=n_envs,
        per_update=together,
        total_steps=config.total_steps,
        device=setup.device,
        clock=clock,
        communicator=setup.communicator,
    )
    return agent, simulator


def connect(setup: Setup, world: World, agent: Agent, received: ReceivedRollouts) -> None:
    """Connect a learner with the other ranks, and give it what rank 0 knows. Raises UserError if ranks have different environments."""
    compare(world, setup)
    if isinstance(setup.communicator, Distributed):
        setup.communicator.meet(dist.PrefixStore("learners", world.watch.store()))
        setup.communicator.broadcast_([*agent.state().values(), *received.state().values()])
    concurrency, seed = setup.config.concurrency, derived_seed(setup.config.seed, "learner", world.rank)
    max_lag = concurrency.max_lag if isinstance(concurrency, AsyncConfig) else None
    device = setup.device.torch
    received.connect(lambda weights, rollout: learner_exchange(world, concurrency, weights, rollout, device, seed), max_lag)


def compare(world: World, setup: Setup) -> None:
    """Raise RankFailed if the rollouts of two ranks have different layouts: they have different environments."""
    own = fingerprint(setup.environment.spec, setup.config.agent.horizon, rollout_envs(setup.config, world))
    world.compare(own, "its environment or settings differ from those of rank 0")


def act(config: Config, world: World) -> None:
    """Live as an actor: get weights, roll out, send, until the learner says that the run is over."""
    actor = world.layout.actor(world.rank)
    rollouts = int(begin(world, world.layout.name))
    with world.together():
        setup = set_up(config)
        n_envs = rollout_envs(config, world)
        agent = None if _learner_acts(config) else make_agent(setup, n_envs)
        acting = agent or Exploration.of(setup.environment.spec, config.agent.explores, setup.device.torch)
        # A run that continues begins new episodes: they must not repeat the draws of those before.
        seed = derived_seed(config.seed, "continued", rollouts) if rollouts else config.seed
        first = actor * n_envs
        simulator = make_simulator(setup, n_envs, config.agent.horizon, seed, acting, print, first)
        prepare(setup, simulator)
        weights = WeightsBuffer(acting.policy_state())
        rollout = RolloutBuffer(setup.environment.spec, config.agent.horizon, n_envs)
    compare(world, setup)
    exchange = actor_exchange(world, config.concurrency, weights, rollout, agent.act if agent else None)
    sequence, waited_s, began_s = 0, world.waited_s, time.monotonic()
    while exchange.latest():
        weights.unpack()
        refuse(simulator.fault())
        trajectory = simulator.collect(exchange.act)
        refuse(simulator.fault(wait=True))
        now_s, now_waited_s = time.monotonic(), world.waited_s
        waited_now_s = now_waited_s - waited_s
        origin = Origin(actor, sequence, weights.version, waited_now_s, now_s - began_s - waited_now_s)
        rollout.fill(trajectory, simulator.episodes(), origin)
        exchange.send(rollout)
        sequence, waited_s, began_s = sequence + 1, now_waited_s, now_s
    print(f"actor {actor} made {sequence} rollouts")
    world.barrier()
    exchange.free()


def communicator_of(config: Config, world: World) -> Communicator:
    """Return the communicator of the learners; it works from `connect` on."""
    if world.layout.learners == 1:
        return SingleProcess()
    return Distributed(world.rank, world.layout.learners, choose(config.device).torch, world.watch)


def learn(config: Config, world: World) -> None:
    """Live as a learner other than rank 0: take part in every iteration, until rank 0 says that the run is over."""
    began_s = time.monotonic()
    begin(world, world.layout.name)
    with world.together():
        setup = set_up(config, communicator_of(config, world))
        agent, received = make_learner(setup, world, lambda: time.monotonic() - began_s)
    connect(setup, world, agent, received)
    while True:
        order, progress = take(setup.communicator)
        if order == Order.END:
            break
        agent.update(received.collect(agent.act), progress)
    received.close()


def run_rank(config: Config, world: World) -> None:
    """Run any rank but 0 to its end. Signals are left to rank 0."""
    with signals.requests.deferred():
        (learn if world.is_learner else act)(config, world)
    world.watch.end()


def _learner_acts(config: Config) -> bool:
    return isinstance(config.concurrency, SeedConfig)
