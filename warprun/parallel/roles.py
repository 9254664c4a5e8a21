"""What the processes of a run of learners and actors do: the learners, and the lives of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

import torch
import torch.distributed as dist

from warprun.config.schema import AsyncConfig, Config, SeedConfig
from warprun.errors import TrainingFailed, UserError, one_line
from warprun.learning.communicator import Communicator, SingleProcess
from warprun.learning.interfaces import Agent
from warprun.parallel.begin import begin
from warprun.parallel.buffers import Origin, RolloutBuffer, WeightsBuffer, fingerprint
from warprun.parallel.distributed import Distributed
from warprun.parallel.exchange import ActorExchange
from warprun.parallel.messages import send_left
from warprun.parallel.orders import Order, give, take
from warprun.parallel.protocols import actor_exchange, learner_exchange
from warprun.parallel.received import ReceivedRollouts
from warprun.parallel.seed import Drawing
from warprun.parallel.world import World
from warprun.runs import checkpoint, signals
from warprun.runs.build import Setup, make_agent, make_simulator, prepare, set_up
from warprun.runs.crew import Crew
from warprun.runs.sentinel import refuse
from warprun.simulation.device import choose
from warprun.simulation.external import leading
from warprun.simulation.simulator import Simulator
from warprun.state import derived_seed


def rollout_envs(config: Config, world: World) -> int:
    """Return the environments of an actor."""
    return config.n_envs // world.layout.actors


class LearnersWithActors(Crew):
    """Learners whose rollouts come from actors: learner 0 drives the run, the other learners follow its orders, actors ask for weights."""

    simulator: ReceivedRollouts

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def together(self) -> AbstractContextManager[None]:
        """Do something in all processes or in none."""
        return self._world.together()

    def set_up(self, config: Config) -> Setup:
        """Return the set-up of this learner. Raises UserError."""
        world = self._world
        communicator: Communicator = SingleProcess()
        if world.layout.learners > 1:
            communicator = Distributed(world.rank, world.layout.learners, choose(config.device).torch, world.watch)
        self.setup = set_up(config, communicator)
        return self.setup

    def make_parts(self, announce: Callable[[str], None], clock: Callable[[], float]) -> tuple[Agent, Simulator]:
        """Return the agent, and the simulator whose rollouts are those that actors send."""
        setup, world = self.setup, self._world
        config, n_envs = setup.config, rollout_envs(setup.config, world)
        together = 1 if isinstance(config.concurrency, AsyncConfig) else len(world.layout.actors_of(world.rank))
        self.agent = agent = make_agent(setup, n_envs * together, world.layout.actors if together == 1 else 1)
        self.simulator = ReceivedRollouts(
            world,
            WeightsBuffer(Drawing(agent.exploration).policy_state() if _learner_acts(config) else agent.policy_state()),
            spec=setup.environment.spec,
            horizon=config.agent.horizon,
            n_envs=n_envs,
            per_update=together,
            total_steps=config.total_steps,
            device=setup.device,
            clock=clock,
            communicator=setup.communicator,
        )
        return self.agent, self.simulator

    def restore(self, saved: checkpoint.Loaded) -> str:
        """Continue from a checkpoint; actors always begin new episodes, and `meet` says so."""
        super().restore(saved)
        return ""

    def meet(self, folder: Path, saved: checkpoint.Loaded | None, last_words: Callable[[str], None]) -> str:
        """Wait until all processes are set up, and connect with them."""
        self._world.share(f"{folder.absolute()}\n{self.simulator.rollouts}")
        with self.together():
            pass
        self._connect()
        self._world.watch.last_words = last_words
        return self.simulator.describe()

    def iterate(self, progress: float) -> None:
        """Order the other learners to learn from their next rollouts."""
        give(self.setup.communicator, Order.ITERATE, progress)

    @property
    def env_steps(self) -> int:
        """Environment steps of all rollouts that were learned from."""
        return self.simulator.env_steps

    def lost(self) -> Sequence[str]:
        """Return the actors that the run goes on without, each with the reason."""
        return self.simulator.lost

    def metrics(self) -> dict[str, float]:
        """Return what section "Records" of docs/actors.md lists, since the last call."""
        return dict(self.simulator.metrics())

    def end(self) -> None:
        """End the run for learners and actors."""
        give(self.setup.communicator, Order.END)
        self.simulator.close()
        self._world.watch.end()

    def follow(self, config: Config) -> None:
        """Live as a learner other than the first: take part in every iteration, until that one says that the run is over."""
        began_s = time.monotonic()
        begin(self._world, self._world.process, self._world.layout.name)
        with self.together():
            self.set_up(config)
            agent, received = self.make_parts(print, lambda: time.monotonic() - began_s)
        self._connect()
        while True:
            order, progress = take(self.setup.communicator)
            if order == Order.END:
                break
            agent.update(received.collect(agent.act), progress)
        received.close()

    def _connect(self) -> None:
        """Connect a learner with the other processes, and give it what learner 0 knows. Raises UserError if environments differ."""
        setup, world = self.setup, self._world
        compare(world, setup)
        if isinstance(setup.communicator, Distributed):
            setup.communicator.meet(dist.PrefixStore("learners", world.watch.store()))
            setup.communicator.broadcast_([*self.agent.state().values(), *self.simulator.state().values()])
        concurrency, seed = setup.config.concurrency, derived_seed(setup.config.seed, "learner", world.rank)
        max_lag = concurrency.max_lag if isinstance(concurrency, AsyncConfig) else None
        device = setup.device.torch
        self.simulator.connect(lambda weights, rollout: learner_exchange(world, concurrency, weights, rollout, device, seed), max_lag)


def check_gpus(config: Config, world: World) -> None:
    """Raise UserError if two learners have the same GPU; every process calls this."""
    with world.together():
        device = choose(config.device) if world.is_learner else None
        own = str(torch.cuda.get_device_properties(device.torch).uuid) if device and device.kind == "cuda" else ""
    with world.together():
        refuse_shared_gpu(world.everyone.allgather(own), world.layout.name)


def refuse_shared_gpu(gpus: Sequence[str], name: Callable[[int], str]) -> None:
    """Raise UserError if two processes have the same GPU; `gpus`: the identity of that of each process, empty: none."""
    first: dict[str, int] = {}
    for process, gpu in enumerate(gpus):
        if gpu and first.setdefault(gpu, process) != process:
            raise UserError(
                f"{name(process)} has the GPU of {name(first[gpu])}, and every learner needs one of its own: let the scheduler bind them"
                " (srun --gpus-per-task=1), or set CUDA_VISIBLE_DEVICES, concurrency.learners or device=cpu"
            )


def compare(world: World, setup: Setup) -> None:
    """Raise RankFailed if the rollouts of two ranks have different layouts: they have different environments."""
    own = fingerprint(setup.environment.spec, setup.config.agent.horizon, rollout_envs(setup.config, world))
    world.compare(own, "its environment or settings differ from those of rank 0")


def act(config: Config, world: World) -> None:
    """Live as an actor: get weights, roll out, send, until the learner says that the run is over."""
    actor = world.layout.actor(world.rank)
    rollouts = int(begin(world, world.process, world.layout.name))
    with world.together(), leading.leading():
        setup = set_up(config)
        n_envs = rollout_envs(config, world)
        agent = None if _learner_acts(config) else make_agent(setup, n_envs)
        acting = agent or Drawing.of(setup.environment.spec, config.agent.policies, setup.device.torch)
        # A run that continues begins new episodes: they must not repeat the draws of those before.
        seed = derived_seed(config.seed, "continued", rollouts) if rollouts else config.seed
        first = actor * n_envs
        simulator = make_simulator(setup, n_envs, config.agent.horizon, seed, acting, print, first, compares=config.engine.compare)
        prepare(setup, simulator)
        weights = WeightsBuffer(acting.policy_state())
        rollout = RolloutBuffer(setup.environment.spec, config.agent.horizon, n_envs)
    compare(world, setup)
    exchange = actor_exchange(world, config.concurrency, weights, rollout, agent.act if agent else None)
    with leading.leading(), closing(simulator):
        leaves = isinstance(config.concurrency, AsyncConfig) and config.concurrency.tolerate_actors > 0
        made = _roll_out(world, exchange, simulator, weights, rollout, leaves)
    print(f"actor {actor} made {made} rollouts")
    world.barrier()
    exchange.free()


def _roll_out(
    world: World, exchange: ActorExchange, simulator: Simulator, weights: WeightsBuffer, rollout: RolloutBuffer, leaves: bool
) -> int:
    """Get weights, roll out, send, until there is no rollout to make; return how many there were.

    `leaves`: if an environment fails, this actor leaves the run, which goes on without it.
    """
    actor = world.layout.actor(world.rank)
    sequence, waited_s, began_s = 0, world.waited_s, time.monotonic()
    while exchange.latest():
        weights.unpack()
        refuse(simulator.fault())
        try:
            trajectory = simulator.collect(exchange.act)
        except TrainingFailed as error:
            if not leaves:
                raise
            print(f"warprun: error: {error}")
            send_left(world, one_line(error))
            break
        refuse(simulator.fault(wait=True))
        now_s, now_waited_s = time.monotonic(), world.waited_s
        waited_now_s = now_waited_s - waited_s
        origin = Origin(actor, sequence, weights.version, waited_now_s, now_s - began_s - waited_now_s)
        rollout.fill(trajectory, simulator.episodes(), origin)
        exchange.send(rollout)
        sequence, waited_s, began_s = sequence + 1, now_waited_s, now_s
    return sequence


def serve(world: World) -> None:
    """Live as a process that serves an actor: make the calls of its environments that the actor makes, and for the first actor rank 0."""
    place = leading.here
    assert place is not None
    begin(world, world.process, world.layout.name)
    with world.together():
        place.serve([world.layout.leader(world.layout.actor_of(world.process))], world.wait)
    world.compare(None, "")
    place.serve(patience=world.wait)


def run_rank(config: Config, world: World) -> None:
    """Run any rank but 0 to its end. Signals are left to rank 0."""
    with signals.requests.deferred():
        if world.serves:
            serve(world)
        elif world.is_learner:
            LearnersWithActors(world).follow(config)
        else:
            act(config, world)
    world.watch.end()


def _learner_acts(config: Config) -> bool:
    return isinstance(config.concurrency, SeedConfig)
