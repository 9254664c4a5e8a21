"""The processes of a run of learners and actors: the learners, and the lives of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

import torch
import torch.distributed as dist

from warprun.config.schema import Config
from warprun.errors import TrainingFailed, UserError, one_line
from warprun.learning.communicator import Communicator, SingleProcess
from warprun.learning.interfaces import Agent
from warprun.parallel.central_inference import Drawing
from warprun.parallel.distributed import Distributed
from warprun.parallel.exchange import ActorExchange, RolloutBuffer, WeightsBuffer, fingerprint
from warprun.parallel.following import Order, begin, give, lead, take
from warprun.parallel.messages import send_left
from warprun.parallel.protocols import PROTOCOLS, End
from warprun.parallel.received import ReceivedRollouts
from warprun.parallel.world import World
from warprun.runs import checkpoint, signals
from warprun.runs.build import Setup, make_agent, make_simulator, prepare, set_up
from warprun.runs.crew import Crew
from warprun.runs.sentinel import refuse
from warprun.simulation.device import choose
from warprun.simulation.external import mpi
from warprun.simulation.simulator import Simulator
from warprun.state import derived_seed


def rollout_envs(config: Config, world: World) -> int:
    """Return the environments of an actor."""
    return config.n_envs // world.layout.actors


class ActorsCrew(Crew):
    """Learners whose rollouts come from actors.

    Learner 0 drives the run, the other learners follow its orders, actors ask for weights, and what actors lead serves.
    """

    simulator: ReceivedRollouts

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world, self.watch, self.drives = world, world.watch, world.process == 0

    def check_devices(self, wanted: str) -> None:
        """Raise UserError if two learners have the same GPU; every process calls this."""
        world = self._world
        if world.layout.learners == 1:
            return
        with self.together():
            device = choose(wanted) if world.is_learner else None
            has_gpu = device and device.kind == "cuda"
            own = str(torch.cuda.get_device_properties(device.torch).uuid) if device and has_gpu else ""
        with self.together():
            refuse_shared_gpu(world.ranks.gather(own), world.layout.name)

    def together(self) -> AbstractContextManager[None]:
        return self._world.ranks.together()

    def set_up(self, config: Config) -> Setup:
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
        together = 1 if config.concurrency.one_by_one else len(world.layout.actors_of(world.rank))
        self.agent = agent = make_agent(setup, n_envs * together, world.layout.actors if together == 1 else 1)
        acting = Drawing(agent.exploration) if config.concurrency.learners_act else agent
        self.simulator = ReceivedRollouts(
            world,
            WeightsBuffer(acting.policy_state()),
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
        world, continues = self._world, self.simulator.rollouts > 0
        lead(world.ranks, folder, str(self.simulator.rollouts))
        self._connect()
        self.watch.last_words = last_words
        learners, actors = (
            f"{count} {role}{'' if count == 1 else 's'}"
            for count, role in ((world.layout.learners, "learner"), (world.layout.actors, "actor"))
        )
        n_envs, anew = rollout_envs(self.setup.config, world), "; they begin new episodes" if continues else ""
        return f"{learners} and {actors} with {n_envs} environments each{anew}"

    def iterate(self, progress: float) -> None:
        """Order the other learners to learn from their next rollouts."""
        give(self.setup.communicator, Order.ITERATE, progress)

    def has_rollout(self) -> bool:
        """Return whether all rollouts of the last collection have come."""
        return self.simulator.is_whole

    @property
    def env_steps(self) -> int:
        return self.simulator.env_steps

    def lost(self) -> Sequence[str]:
        return self._world.lost

    def metrics(self) -> dict[str, float]:
        return dict(self.simulator.metrics())

    def end(self) -> None:
        """End the run for learners and actors."""
        give(self.setup.communicator, Order.END)
        self.simulator.close()
        self.watch.end()

    def follow(self, config: Config) -> None:
        """Live as any process but that of learner 0, until it says that the run is over."""
        world = self._world
        with signals.requests.deferred():  # signals are left to rank 0
            more = begin(world.ranks)
            if world.layout.serves(world.process):
                _serve(world)
            elif world.is_learner:
                self._learn(config)
            else:
                _act(config, world, rollouts=int(more))
        self.watch.end()

    def _learn(self, config: Config) -> None:
        began_s = time.monotonic()
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
        """Connect a learner with the other processes, and give it the state of learner 0. Raises what `_compare` does."""
        setup, world = self.setup, self._world
        _compare(world, setup)
        if isinstance(setup.communicator, Distributed):
            setup.communicator.meet(dist.PrefixStore("learners", self.watch.store()))
            setup.communicator.broadcast_([*self.agent.state().values(), *self.simulator.state().values()])
        concurrency, seed = setup.config.concurrency, derived_seed(setup.config.seed, "learner", world.rank)
        device = setup.device.torch
        self.simulator.connect(
            lambda weights, rollout: PROTOCOLS[concurrency.name].learner(End(world, concurrency, weights, rollout), device, seed),
            concurrency.lag_limit,
        )


def refuse_shared_gpu(gpus: Sequence[str], name: Callable[[int], str]) -> None:
    """Raise UserError if two processes have the same GPU; `gpus`: the identity of that of each process, empty: none."""
    first: dict[str, int] = {}
    for process, gpu in enumerate(gpus):
        if gpu and first.setdefault(gpu, process) != process:
            raise UserError(
                f"{name(process)} has the GPU of {name(first[gpu])}, and every learner needs one of its own: let the"
                " scheduler bind them (srun --gpus-per-task=1), or set CUDA_VISIBLE_DEVICES, concurrency.learners or"
                " device=cpu"
            )


def _compare(world: World, setup: Setup | None) -> None:
    """Raise UserError if environments of two ranks differ, and so their rollouts; every process calls this."""
    own = ""
    if setup:
        own = fingerprint(setup.environment.spec, setup.config.agent.horizon, rollout_envs(setup.config, world))
    first = world.ranks.share(own)
    with world.ranks.together():
        if own not in ("", first):
            raise UserError("its environment or settings differ from those of rank 0")


def _act(config: Config, world: World, rollouts: int) -> None:
    """Live as an actor: get weights, roll out, send, until the learner says that the run is over.

    `rollouts`: how many the run has seen before.
    """
    with world.ranks.together(), mpi.leading():
        setup = set_up(config)
        n_envs = rollout_envs(config, world)
        agent = None if config.concurrency.learners_act else make_agent(setup, n_envs)
        acting = agent or Drawing.of(setup.environment.spec, config.agent.policies, setup.device.torch)
        # A run that continues begins new episodes: they must not repeat the draws of those before.
        seed = derived_seed(config.seed, "continued", rollouts) if rollouts else config.seed
        own = (n_envs, config.agent.horizon, seed, acting, print, world.actor * n_envs)
        simulator = make_simulator(setup, *own, compares=config.engine.compare, staggered=config.staggered)
        prepare(setup, simulator)
        weights = WeightsBuffer(acting.policy_state())
        rollout = RolloutBuffer(setup.environment.spec, config.agent.horizon, n_envs)
    _compare(world, setup)
    end = End(world, config.concurrency, weights, rollout)
    exchange = PROTOCOLS[config.concurrency.name].actor(end, agent.act if agent else None)
    with mpi.leading(), closing(simulator):
        made = _roll_out(world, exchange, simulator, weights, rollout, leaves=config.concurrency.tolerated > 0)
    print(f"actor {world.actor} made {made} rollouts")
    world.part()


def _roll_out(
    world: World,
    exchange: ActorExchange,
    simulator: Simulator,
    weights: WeightsBuffer,
    rollout: RolloutBuffer,
    leaves: bool,
) -> int:
    """Get weights, roll out, send, until there is no rollout to make; return how many there were.

    `leaves`: if an environment fails, this actor leaves the run, which goes on without it.
    """
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
        rollout.fill(
            trajectory,
            simulator.episodes(),
            actor=world.actor,
            sequence=sequence,
            version=weights.version,
            waited_s=waited_now_s,
            acted_s=now_s - began_s - waited_now_s,
        )
        exchange.send(rollout)
        sequence, waited_s, began_s = sequence + 1, now_waited_s, now_s
    return sequence


def _serve(world: World) -> None:
    """Live as a process that serves an actor: make its calls of environments, and for the first actor those of rank 0."""
    place = mpi.here
    assert place is not None
    with world.ranks.together():
        place.serve([world.layout.leader(world.actor)], world.wait)
    _compare(world, None)
    place.serve(patience=world.wait)
