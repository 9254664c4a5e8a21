"""Data-parallel learners (concurrency=ddp): each rank simulates its share of the environments, and rank 0 leads.

Every rank has an agent with the same parameters. Rank 0 drives the run and writes its files; its simulator, `JointSimulator`, speaks for
the environments of all. The others follow its orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from warprun import signals
from warprun.concurrency.communicator import Communicator
from warprun.concurrency.distributed import Distributed
from warprun.concurrency.team import Team
from warprun.config.schema import Config, load_environment
from warprun.errors import TrainingFailed, UserError
from warprun.learning.interfaces import Agent
from warprun.learning.settings import OffPolicyConfig, share_of, shared
from warprun.processes import place
from warprun.runtime import checkpoint
from warprun.runtime.build import Setup, make_agent, make_training_simulator, prepare, set_up
from warprun.runtime.orders import Order, give, take
from warprun.runtime.ranks import begin
from warprun.runtime.sentinel import refuse
from warprun.runtime.shared_state import continued, digest, own_state, receive_states, send_state
from warprun.simulation.device import Device, choose
from warprun.simulation.simulator import Act, Episodes, Simulator
from warprun.simulation.trajectory import Trajectory
from warprun.spec import Spec
from warprun.state import State, restore


def config_of(config: Config, rank: int, size: int) -> Config:
    """Return the config of one rank: its share of the environments, of a batch and of replay memory."""
    return replace(config, n_envs=share_of(config.n_envs, rank, size), agent=shared(config.agent, rank, size))


def check_shares(config: Config, size: int) -> None:
    """Raise UserError if the agent cannot work with the share that some rank has."""
    spec = load_environment(config.env)[0].spec
    for rank in range(size):
        own = config_of(config, rank, size)
        try:
            own.agent.check("agent")
            own.agent.check_run(spec, own.n_envs, config.total_steps)
        except UserError as error:
            raise UserError(f"concurrency=ddp: the share of rank {rank} of {size} processes is too small: {error}") from None


def check_devices(team: Team, wanted: str) -> None:
    """Raise UserError if ranks compute on different kinds of devices, or two of them on the same GPU."""
    device = choose(wanted)
    first = team.share(device.kind)
    with team.together():
        if device.kind != first:
            raise UserError(f"it would compute on device={device.kind}, and rank 0 on device={first}")
    if device.kind == "cuda":
        which = str(torch.cuda.get_device_properties(0).uuid)
        team.compare(
            [place().partition("/")[0], which], "GPU as another rank: start as many processes as there are GPUs, or use device=cpu"
        )


def set_up_rank(config: Config, team: Team) -> Setup:
    """Return the set-up of a rank. Raises UserError."""
    communicator = Distributed(team.rank, team.size, choose(config.device).torch, team.watch)
    return set_up(config_of(config, team.rank, team.size), communicator)


def make_parts(setup: Setup, total_envs: int, announce: Callable[[str], None]) -> tuple[Agent, Simulator]:
    """Return the agent of a rank and the simulator of its environments, which are numbered through all `total_envs`."""
    communicator = setup.communicator
    agent = make_agent(setup)
    first_env = sum(share_of(total_envs, rank, communicator.size) for rank in range(communicator.rank))
    simulator = make_training_simulator(setup, agent, announce, first_env)
    try:
        prepare(setup, simulator)
    except BaseException:
        simulator.close()
        raise
    return agent, simulator


def connect(setup: Setup, team: Team, agent: Agent) -> None:
    """Connect a rank with the others, and give all the policy of rank 0."""
    communicator = setup.communicator
    assert isinstance(communicator, Distributed)
    communicator.meet(dist.PrefixStore("learners", team.watch.store()))
    communicator.contribute(setup.config.n_envs)
    communicator.broadcast_(agent.policy_state().values())
    team.watch.progress = lambda: communicator.joined


def describe(config: Config, team: Team) -> str:
    """Return the ranks of a run as one line."""
    shares = [share_of(config.n_envs, rank, team.size) for rank in (0, team.size - 1)]
    each = f"{shares[0]:,}" if shares[0] == shares[1] else f"{shares[1]:,} or {shares[0]:,}"
    return f"{team.size} processes learn together, with {each} environments each"


class JointSimulator:
    """The simulator of rank 0, which counts the episodes of all ranks."""

    def __init__(self, own: Simulator, agent: Agent, communicator: Communicator) -> None:
        self.own = own
        self.spec: Spec = own.spec
        self.device: Device = own.device
        self.n_envs, self.trajectory, self.prepare, self.reset = own.n_envs, own.trajectory, own.prepare, own.reset
        self.fault, self.state, self.close = own.fault, own.state, own.close
        self._agent, self._communicator = agent, communicator

    @property
    def steps(self) -> int:
        """Steps that every environment has taken."""
        return self.own.steps

    def collect(self, act: Act, greedy: bool = False) -> Trajectory:
        """Roll out the environments of this rank; the others do the same."""
        return self.own.collect(act, greedy)

    def episodes(self) -> Episodes:
        """Return the episodes of all ranks. Raises TrainingFailed if the policies of two ranks differ."""
        give(self._communicator, Order.COUNT)
        return count(self._communicator, self.own.episodes(), self._agent)

    def states_of_others(self) -> State:
        """Return what the other ranks have to save, by names of `shared_state`."""
        give(self._communicator, Order.SAVE)
        return receive_states(self._communicator, own_state(self._agent, self.own))


def count(communicator: Communicator, ended: Episodes, agent: Agent) -> Episodes:
    """Return the episodes of all ranks together; every rank calls this. Raises TrainingFailed if the policies of two ranks differ."""
    returns = [mean * ended.count if ended.count else 0.0 for mean in ended.mean_return.values()]
    steps = ended.mean_length * ended.count if ended.count else 0.0
    high, low = divmod(digest(agent.policy_state().values()), 2**32)
    table = torch.zeros((communicator.size, 5 + len(returns)), dtype=torch.float64)
    table[communicator.rank] = torch.tensor([high, low, ended.count, steps, ended.replaced, *returns], dtype=torch.float64)
    communicator.sum_(table)
    different = (table[:, :2] != table[0, :2]).any(1).nonzero().flatten().tolist()
    if different:
        raise TrainingFailed(f"rank {different[0]} has other parameters than rank 0: the machines do not compute the same")
    episodes, length, replaced, *total = table[:, 2:].sum(0).tolist()
    mean = {name: value / episodes if episodes else math.nan for name, value in zip(ended.mean_return, total, strict=True)}
    return Episodes(int(episodes), length / episodes if episodes else math.nan, mean, int(replaced))


def restore_rank(setup: Setup, agent: Agent, simulator: Simulator, saved: checkpoint.Loaded) -> int:
    """Continue a rank from a checkpoint; return how many ranks saved it. Raises UserError.

    If these were others in number, the environments begin new episodes, with draws that no rank has used.
    """
    communicator, own = setup.communicator, own_state(agent, simulator)
    tensors, ranks = continued(own, saved.tensors, communicator.rank, communicator.size)
    if ranks != communicator.size:
        if isinstance(setup.config.agent, OffPolicyConfig):
            now = communicator.size
            raise UserError(f"{saved.path} has the replay memory of {ranks} processes, and these are {now}: continue with {ranks}")
        restore({name: own[name] for name in tensors}, tensors)
        simulator.reset()
        return ranks
    restore(own, tensors)
    return ranks


def follow(config: Config, team: Team) -> None:
    """Live as a rank other than 0: do what rank 0 orders, until it says that the run is over. Signals are left to rank 0."""
    with signals.requests.deferred():
        path = begin(team, team.rank, Team.name)
        with team.together():
            setup = set_up_rank(config, team)
            agent, simulator = make_parts(setup, config.n_envs, print)
            if path:
                _restore_as_rank_0(setup, agent, simulator, Path(path))
        try:
            connect(setup, team, agent)
            _obey(setup.communicator, agent, simulator)
            team.watch.end()
            leave(setup.communicator)
        finally:
            simulator.close()


def _restore_as_rank_0(setup: Setup, agent: Agent, simulator: Simulator, path: Path) -> None:
    saved = checkpoint.load(path.parents[1])
    if saved.path.name != path.name:
        raise UserError(f"it finds {saved.path.name} in {path.parents[1]}, and rank 0 {path.name}")
    restore_rank(setup, agent, simulator, saved)


def leave(communicator: Communicator) -> None:
    """End the connection with the other ranks; all call this together."""
    assert isinstance(communicator, Distributed)
    communicator.part()


def _obey(communicator: Communicator, agent: Agent, simulator: Simulator) -> None:
    while True:
        order, progress = take(communicator)
        if order == Order.END:
            return
        if order == Order.ITERATE:
            trajectory = simulator.collect(agent.act)
            refuse(simulator.fault())
            agent.update(trajectory, progress)
        elif order == Order.COUNT:
            refuse(simulator.fault(wait=True))
            count(communicator, simulator.episodes(), agent)
        elif order == Order.SAVE:
            refuse(simulator.fault(wait=True))
            send_state(communicator, own_state(agent, simulator))
