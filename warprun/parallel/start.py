"""Commands that run in several processes: which rank this one is, and how they are started. No torch and no MPI where one is enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from warprun.config.schema import Config, DdpConfig, SyncConfig
from warprun.errors import UserError, one_line
from warprun.processes import rank, started, starter

if TYPE_CHECKING:
    from warprun.parallel.team import Team
    from warprun.parallel.world import World

T = TypeVar("T")
DDP = "concurrency=ddp"


@cache
def team() -> Team:
    """Return the ranks of a data-parallel run; all processes that were started are among them."""
    from warprun.parallel.team import Team

    return Team(rank(), started())


def in_all_ranks(compose: Callable[[], T], mode: Callable[[T | None], str]) -> T:
    """Return what `compose` returns in every process that was started. Raises UserError in all of them if it fails in one.

    `mode` returns the name of `concurrency` from what was composed, or None if that has failed.
    """
    if started() == 1:
        return compose()
    made, failed = None, None
    if starter() == "mpiexec" and mode(None) != "ddp":
        from warprun.parallel.mpi import meet

        meet()
    try:
        made = compose()
    except Exception as error:
        failed = error
    own = one_line(failed) if failed else ""
    if mode(made) == "ddp" or starter() == "torchrun":
        if starter() == "mpiexec":
            raise UserError(f"{DDP} needs no mpiexec: add concurrency.processes={started()} instead, or start it with srun or torchrun")
        team().agree(own, failed)
    else:
        from warprun.parallel.mpi import agree

        agree(own, failed)
    if failed or made is None:
        raise failed or AssertionError
    return made


def with_all_ranks(command: Callable[[], int]) -> int:
    """Execute a command in rank 0, whose environments the other ranks serve; return the exit code."""
    if starter() == "torchrun":
        raise UserError("this command is one process; only environments that are MPI programs have several, started with mpiexec or srun")
    from warprun.parallel.mpi import with_all_ranks

    return with_all_ranks(command)


def world_of(config: Config) -> World | Team | None:
    """Return the ranks of a run; None if it is one process. Every process calls this, after `in_all_ranks`. Raises UserError."""
    concurrency = config.concurrency
    if isinstance(concurrency, SyncConfig):
        if starter() == "torchrun":
            raise UserError(f"concurrency={concurrency.name} is not started with torchrun: start it with mpiexec or srun")
        from warprun.parallel.mpi import world_of as world_of_mpi

        return world_of_mpi(config, concurrency)
    if isinstance(concurrency, DdpConfig):
        return _team_of(config, concurrency)
    if started() > 1:
        raise UserError(
            f"{started()} processes were started, and concurrency={concurrency.name} is one: write concurrency=ddp, or async or sync"
        )
    return None


def _team_of(config: Config, concurrency: DdpConfig) -> Team | None:
    size = started()
    if concurrency.processes not in (None, size):
        if not starter() or size == 1:
            raise UserError("concurrency.processes: only the command line starts processes; leave it out")
        raise UserError(
            f"concurrency.processes={concurrency.processes}, and {starter()} has started {size}: leave it out, or continue a run"
            " with concurrency.processes=null"
        )
    if size == 1 and not starter() and concurrency.processes is None:
        raise UserError(f"{DDP} needs several processes: add concurrency.processes=2, or start them with srun or torchrun")
    if size > config.n_envs:
        raise UserError(f"{DDP}: n_envs={config.n_envs} gives some of {size} processes no environment")
    if size == 1:
        return None
    from warprun.parallel.ddp import check_devices, check_shares

    check_shares(config, size)
    joined = team()
    joined.begin(concurrency.timeout_s)
    check_devices(joined, config.device)
    return joined


def start(config: Config, arguments: Sequence[str]) -> int:
    """Start the processes of a run on this machine, wait for them, and return the exit code. Raises UserError."""
    concurrency = config.concurrency
    if isinstance(concurrency, DdpConfig):
        from warprun.parallel.launch import start as start_ranks

        return start_ranks(config, concurrency, arguments)
    from warprun.parallel.mpi import start as start_mpi

    assert isinstance(concurrency, SyncConfig)
    return start_mpi(config, concurrency, arguments)
