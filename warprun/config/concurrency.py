"""The modes of `concurrency`: their settings, the checks of these, and what follows from a mode. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from omegaconf import MISSING

from warprun.config.external import ALONE, Parallel
from warprun.errors import check_one_of, check_range, require
from warprun.processes import fit, started, starter

WINDOWS = ("queue", "range", "random")
MOST_PLACES = 1024
"""Rollouts in the queue of an actor."""
MOST_PATIENCE_US = 1_000_000
"""Microseconds that a learner waits for further observations."""
MOST_RANKS = 65536
"""Processes of a run."""


@dataclass
class ConcurrencyConfig:
    """Settings that all modes have, and what follows from a mode."""

    has_actors: ClassVar[bool] = False
    """Whether learners get their rollouts from actors, which are processes of their own."""
    learners_act: ClassVar[bool] = False
    """Whether learners act for their actors, which have no policy."""
    one_by_one: ClassVar[bool] = False
    """Whether a learner takes the rollouts of its actors in the order of their arrival, and not one of each together."""

    name: str = MISSING
    """Name of the mode."""
    threads: int | None = None
    """CPU threads of each process; null: all cores that it may use."""
    workers: int | None = None
    """Processes that step environments with the interface of Gymnasium; null: as many as cores; 0: the process itself steps them."""

    @property
    def parallel(self) -> Parallel:
        """Who steps environments that are parallel programs."""
        return ALONE

    @property
    def wanted(self) -> int | None:
        """Processes that the command starts for a run; None: none, others have started them."""
        return 1

    @property
    def tolerated(self) -> int:
        """Actors that a run goes on without."""
        return 0

    @property
    def lag_limit(self) -> int | None:
        """Updates by which the weights of a rollout can be older; None: any number."""
        return None

    def starts(self) -> bool:
        """Return whether this command has to start the processes of the run."""
        return False

    def check(self, n_envs: int) -> None:
        """Raise UserError for a setting that cannot work."""

    def shareable(self, n_envs: int, size: int) -> int:
        """Return the number nearest to `n_envs` that `size` processes can share. Raises UserError if there are too few processes."""
        return n_envs


@dataclass
class SingleConfig(ConcurrencyConfig):
    name: str = "single"
    """One process, one device."""


@dataclass
class SyncConfig(ConcurrencyConfig):
    has_actors: ClassVar[bool] = True

    name: str = "sync"
    """Learners and actors in processes of their own, see docs/parallel.md: learners wait for the rollouts of all actors."""
    processes: int | None = None
    """Start as many processes on this machine, with mpiexec; null: the processes that mpiexec or srun has started."""
    learners: int = 1
    """Processes that learn; the others act."""
    ranks_per_env: int = 1
    """Processes that step an environment together, for environments that are MPI programs: the first of them is the actor."""
    threads: int | None = 1
    """CPU threads of each process; null: all cores that it may use."""
    workers: int | None = 0
    """Processes with which each actor steps environments with the interface of Gymnasium; 0: the actor itself steps them."""
    timeout_s: float = 60.0
    """A process that gives no sign of life for so many seconds is lost, and ends the run."""

    @property
    def parallel(self) -> Parallel:
        return Parallel(self.learners, self.ranks_per_env)

    @property
    def wanted(self) -> int | None:
        return self.processes

    def starts(self) -> bool:
        return self.processes is not None and started() == 1

    def check(self, n_envs: int) -> None:
        _check_processes(self)
        check_range("concurrency.learners", self.learners, 1, MOST_RANKS)
        check_range("concurrency.ranks_per_env", self.ranks_per_env, 1, MOST_RANKS)
        own = f"concurrency.workers={self.workers}: the ranks of a group step its environments; write workers=0"
        require(not self.workers or self.ranks_per_env == 1, own)

    def shareable(self, n_envs: int, size: int) -> int:
        """Return the nearest number that gives every actor as many environments."""
        if min(self.parallel) < 1:
            return n_envs
        actors = fit(size, *self.parallel).actors
        return max(1, round(n_envs / actors)) * actors


@dataclass
class SeedConfig(SyncConfig):
    learners_act: ClassVar[bool] = True

    name: str = "seed"
    """As `sync`, but learners act: actors send observations and get what the policy gives for them."""
    batch_us: float = 200.0
    """Microseconds that a learner waits for the observations of further actors after the first one, to act for all in one batch."""

    def check(self, n_envs: int) -> None:
        super().check(n_envs)
        check_range("concurrency.batch_us", self.batch_us, 0, MOST_PATIENCE_US, f"{MOST_PATIENCE_US:,}")


@dataclass
class AsyncConfig(SyncConfig):
    one_by_one: ClassVar[bool] = True

    name: str = "async"
    """As `sync`, but a learner takes rollouts in the order of their arrival."""
    max_lag: int | None = None
    """Drop rollouts of an actor whose weights were older by more than so many updates, and count them; null: learn from all."""
    tolerate_actors: int = 0
    """With `async`: up to so many actors whose environment, one with the interface of Gymnasium, fails or hangs are left out."""

    @property
    def tolerated(self) -> int:
        return self.tolerate_actors

    @property
    def lag_limit(self) -> int | None:
        return self.max_lag

    def check(self, n_envs: int) -> None:
        super().check(n_envs)
        lost, lag = self.tolerate_actors, self.max_lag
        check_range("concurrency.tolerate_actors", lost, 0, MOST_RANKS)
        alone = self.name == "async" and self.learners == 1 and self.ranks_per_env == 1
        require(not lost or alone, f"concurrency.tolerate_actors={lost} needs concurrency=async, learners=1 and ranks_per_env=1")
        require(lag is None or 0 <= lag < 2**31, f"concurrency.max_lag={lag} must be 0 or more")


@dataclass
class RmaConfig(AsyncConfig):
    name: str = "rma"
    """As `async`, but through one-sided memory: no actor waits for a learner's code."""
    window: str = "queue"
    """How learners take rollouts: queue (each once, in order), range (the newest of their own actors, perhaps more than once) or random
    (the newest of any actor)."""
    queue: int = 2
    """window=queue: rollouts of an actor that wait to be taken; while there are as many, the actor waits."""

    def check(self, n_envs: int) -> None:
        super().check(n_envs)
        check_one_of("concurrency.window", self.window, WINDOWS)
        check_range("concurrency.queue", self.queue, 1, MOST_PLACES)


@dataclass
class DdpConfig(ConcurrencyConfig):
    name: str = "ddp"
    """Data-parallel learners, see docs/parallel.md: every process steps its share of the environments, and gradients are averaged."""
    processes: int | None = None
    """Start as many processes on this machine; null: those that srun or torchrun has started."""
    workers: int | None = 0
    """Processes with which each rank steps environments with the interface of Gymnasium; 0: the rank itself steps them."""
    timeout_s: float = 60.0
    """A process that gives no sign of life, or keeps the others waiting, for so many seconds is lost, and ends the run."""

    @property
    def wanted(self) -> int | None:
        return self.processes

    def starts(self) -> bool:
        return (self.processes or 1) > 1 and started() == 1 and starter() != "torchrun"

    def check(self, n_envs: int) -> None:
        _check_processes(self)
        count = self.processes
        shared = count is None or count <= n_envs
        require(shared, f"concurrency.processes={count}: n_envs={n_envs} gives some of them no environment")

    def shareable(self, n_envs: int, size: int) -> int:
        """Return a number that gives every learner an environment."""
        return max(n_envs, size)


def _check_processes(config: SyncConfig | DdpConfig) -> None:
    check_range("concurrency.processes", config.processes, 1, MOST_RANKS)
    usable = math.isfinite(config.timeout_s) and config.timeout_s >= 2
    require(usable, f"concurrency.timeout_s={config.timeout_s} must be a number of seconds, 2 or more")


CONCURRENCY: dict[str, type[ConcurrencyConfig]] = {
    "single": SingleConfig,
    "ddp": DdpConfig,
    "sync": SyncConfig,
    "seed": SeedConfig,
    "async": AsyncConfig,
    "rma": RmaConfig,
}
"""The modes: the files of conf/concurrency."""
