"""Data-parallel learners (concurrency=ddp): each rank simulates its share of the environments, and rank 0 leads.

Every rank has an agent with the same parameters. Rank 0 drives the run, writes its files, and counts the episodes of
all. The others follow its orders. A checkpoint has the state of rank 0, and of the others what differs from it. A rank
that dies is found by `parallel.watch`; collectives then raise `RankFailed` (`parallel.distributed`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from warprun.config.schema import Config, load_environment
from warprun.errors import TrainingFailed, UserError
from warprun.learning.interfaces import Agent
from warprun.learning.settings.agent import check_settings
from warprun.learning.settings.off_policy import share_of
from warprun.parallel.distributed import Distributed, digest
from warprun.parallel.following import Order, begin, give, lead, take
from warprun.parallel.store import StoreRanks
from warprun.processes import machine_name
from warprun.runs import checkpoint, signals
from warprun.runs.build import Setup, make_agent, set_up
from warprun.runs.crew import RANKS, Crew, own_state
from warprun.runs.sentinel import refuse
from warprun.simulation.device import choose
from warprun.simulation.simulator import Episodes, Simulator
from warprun.state import State


def config_of(config: Config, rank: int, size: int) -> Config:
    """Return the config of one rank: its share of the environments, of a batch and of replay memory."""
    return replace(config, n_envs=share_of(config.n_envs, rank, size), agent=config.agent.of_rank(rank, size))


def check_shares(config: Config, size: int) -> None:
    """Raise UserError if the agent cannot work with the share that some rank has."""
    spec = load_environment(config.env)[0].spec
    for rank in range(size):
        own = config_of(config, rank, size)
        try:
            check_settings(own.agent)
            own.agent.check_run(spec, own.n_envs, config.total_steps)
        except UserError as error:
            raise UserError(f"concurrency=ddp: the share of rank {rank} of {size} processes is too small: {error}") from None


class DdpCrew(Crew):
    """The ranks of a data-parallel run: rank 0 drives the run, and the others do what it orders."""

    def __init__(self, ranks: StoreRanks) -> None:
        super().__init__()
        self._ranks, self.watch, self.drives = ranks, ranks.watch, ranks.rank == 0

    def check_devices(self, wanted: str) -> None:
        """Raise UserError if ranks compute on different kinds of devices, or two of them on the same GPU."""
        device, ranks = choose(wanted), self._ranks
        first = ranks.share(device.kind)
        with ranks.together():
            if device.kind != first:
                raise UserError(f"it would compute on device={device.kind}, and rank 0 on device={first}")
        if device.kind == "cuda":
            gpus = ranks.gather(f"{machine_name().partition('/')[0]} {torch.cuda.get_device_properties(0).uuid}")
            with ranks.together():
                if gpus.index(gpus[ranks.rank]) < ranks.rank:
                    raise UserError("it has the same GPU as another rank: start as many processes as there are GPUs, or use device=cpu")

    def together(self) -> AbstractContextManager[None]:
        return self._ranks.together()

    def set_up(self, config: Config) -> Setup:
        """Return the set-up of this rank, whose config has its share of the environments. Raises UserError."""
        rank, size, self.n_envs = self._ranks.rank, self._ranks.size, config.n_envs
        self._communicator = Distributed(rank, size, choose(config.device).torch, self.watch)
        self.setup = set_up(config_of(config, rank, size), self._communicator)
        return self.setup

    def make_parts(self, announce: Callable[[str], None], clock: Callable[[], float]) -> tuple[Agent, Simulator]:
        """Return the agent of this rank, and the simulator of its environments, numbered through those of all ranks."""
        self.agent = make_agent(self.setup)
        first_env = sum(share_of(self.n_envs, rank, self._ranks.size) for rank in range(self._ranks.rank))
        return self.agent, self._make_simulator(announce, first_env)

    def meet(self, folder: Path, saved: checkpoint.Loaded | None, last_words: Callable[[str], None]) -> str:
        size = self._ranks.size
        lead(self._ranks, folder, str(saved.path.absolute()) if saved else "")
        self._connect()
        self.watch.last_words = last_words
        shares = [share_of(self.n_envs, rank, size) for rank in (0, size - 1)]
        each = f"{shares[0]:,}" if shares[0] == shares[1] else f"{shares[1]:,} or {shares[0]:,}"
        return f"{size} processes learn together, with {each} environments each"

    def iterate(self, progress: float) -> None:
        """Order a rollout and an update."""
        give(self._communicator, Order.ITERATE, progress)

    def episodes(self) -> Episodes:
        """Return the episodes of all ranks. Raises TrainingFailed if the policies of two ranks differ."""
        give(self._communicator, Order.COUNT)
        return self._count()

    def state(self) -> State:
        """Return the state of this rank, and what differs from it in the others."""
        own = own_state(self.agent, self.simulator)
        give(self._communicator, Order.SAVE)
        return own | {RANKS: torch.tensor(self._ranks.size)} | self._communicator.receive_states(own)

    def end(self) -> None:
        """Order the end of the run, and part from the others."""
        give(self._communicator, Order.END)
        self._communicator.part()
        self.watch.end()

    def follow(self, config: Config) -> None:
        """Live as a rank other than 0: do what rank 0 orders, until it says that the run is over."""
        with signals.requests.deferred():  # signals are left to rank 0
            path = begin(self._ranks)
            try:
                with self.together():
                    self.set_up(config)
                    self.make_parts(print, lambda: 0.0)
                    if path:
                        self._restore_as_rank_0(Path(path))
                self._connect()
                self._obey()
                self.watch.end()
                self._communicator.part()
            finally:
                self.close()

    def _obey(self) -> None:
        while True:
            order, progress = take(self._communicator)
            if order == Order.END:
                return
            if order == Order.ITERATE:
                trajectory = self.simulator.collect(self.agent.act)
                refuse(self.simulator.fault())
                self.agent.update(trajectory, progress)
                continue
            refuse(self.simulator.fault(wait=True))
            if order == Order.COUNT:
                self._count()
            else:
                self._communicator.send_state(own_state(self.agent, self.simulator))

    def _connect(self) -> None:
        """Connect this rank with the others, and give all the policy of rank 0."""
        communicator = self._communicator
        communicator.meet(dist.PrefixStore("learners", self.watch.store()))
        communicator.contribute(self.setup.config.n_envs)
        communicator.broadcast_(self.agent.policy_state().values())
        self.watch.progress = lambda: communicator.joined

    def _restore_as_rank_0(self, path: Path) -> None:
        saved = checkpoint.load(path.parents[1])
        if saved.path.name != path.name:
            raise UserError(f"it finds {saved.path.name} in {path.parents[1]}, and rank 0 {path.name}")
        self.restore(saved)

    def _count(self) -> Episodes:
        """Return the episodes of all ranks; every rank calls this. Raises TrainingFailed if policies differ."""
        ended, communicator = self.simulator.episodes(), self._communicator
        returns = [mean * ended.count if ended.count else 0.0 for mean in ended.mean_return.values()]
        steps = ended.mean_length * ended.count if ended.count else 0.0
        high, low = divmod(digest(self.agent.policy_state().values()), 2**32)
        table = torch.zeros((communicator.size, 5 + len(returns)), dtype=torch.float64)
        own = [high, low, ended.count, steps, ended.replaced, *returns]
        table[communicator.rank] = torch.tensor(own, dtype=torch.float64)
        communicator.sum_(table)
        different = (table[:, :2] != table[0, :2]).any(1).nonzero().flatten().tolist()
        if different:
            raise TrainingFailed(f"rank {different[0]} has other parameters than rank 0: the machines do not compute the same")
        episodes, length, replaced, *total = table[:, 2:].sum(0).tolist()
        names = zip(ended.mean_return, total, strict=True)
        mean = {name: value / episodes if episodes else math.nan for name, value in names}
        return Episodes(int(episodes), length / episodes if episodes else math.nan, mean, int(replaced))
