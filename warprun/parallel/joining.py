"""The processes of a command: what is done in all of them, and the part that this one takes in a run.

No torch and no MPI where one process is enough.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from warprun.config.concurrency import DdpConfig, SyncConfig
from warprun.config.schema import Config
from warprun.errors import UserError, one_line
from warprun.processes import MpiRanks, last_word, rank, started, starter, wait

if TYPE_CHECKING:
    from mpi4py import MPI

    from warprun.parallel.actors import ActorsCrew
    from warprun.parallel.ddp import DdpCrew
    from warprun.parallel.store import StoreRanks
    from warprun.runs.crew import Crew

T = TypeVar("T")
MODES = {"torchrun": "ddp", "mpiexec": "sync, seed, async or rma"}
"""Starter -> the modes that it starts; srun starts all."""
RANK_0_SPEAKS_S = 3.0
"""Time that rank 0 has to say what is wrong, before another rank does."""


def in_all_ranks(compose: Callable[[], T], mode: Callable[[T | None], str]) -> T:
    """Return the result of `compose` in every process that was started. Raises UserError in all if it fails in one.

    `mode` returns the name of `concurrency` from what was composed. It gets None before that, and if it has failed.
    """
    if started() == 1:
        return compose()
    made, failed = None, None
    if starter() == "mpiexec" and mode(None) != "ddp":
        meet()
    try:
        made = compose()
    except Exception as error:
        failed = error
    if mode(made) == "ddp" or starter() == "torchrun":
        if starter() == "mpiexec":
            raise UserError(
                f"concurrency=ddp needs no mpiexec: add concurrency.processes={started()} instead, or start it with srun or torchrun"
            )
        team().agree(failed)
    else:
        MpiRanks(communicator()).agree(failed)
        meet()
    assert made is not None
    return made


def with_all_ranks(command: Callable[[], int]) -> int:
    """Execute a command in rank 0, whose environments the other ranks serve; return the exit code."""
    if starter() == "torchrun":
        raise UserError("this command is one process; only environments that are MPI programs have several, started with mpiexec or srun")
    meet()
    from warprun.simulation.external.mpi import attend

    place, comm = attend(), communicator()
    if place.led:
        try:
            code = command()
        finally:
            place.release()
        if code == 0:  # else the end of this process meets the others, see `code_of_rank`
            wait(comm.Ibarrier().Test)
        return code
    try:
        place.serve()
    except Exception as error:
        time.sleep(RANK_0_SPEAKS_S)  # it ends all ranks if it has failed in the same way
        last_word(f"warprun: error: {place.name}: {one_line(error)}")
        os._exit(1)
    wait(comm.Ibarrier().Test)
    return 0


def take_part(config: Config, drive: Callable[[Crew | None], T], explain: Callable[[BaseException], BaseException]) -> T | None:
    """Return the result of `drive` if this process drives the run of `config`; it gets the crew, None for one process.

    Any other process lives to the end of the run, and None is returned. Every process that was started calls this, after
    `in_all_ranks`. An error of this process, as `explain` returns it, is told to the others. Raises UserError.
    """
    crew = _crew(config)
    try:
        if crew is None:
            return drive(None)
        crew.check_devices(config.device)
        if crew.drives:
            return drive(crew)
        crew.follow(config)
        return None
    except BaseException as error:
        failure = explain(error)
        if crew:
            crew.watch.fail(one_line(failure))
        if failure is error:
            raise
        raise failure from error


def _crew(config: Config) -> DdpCrew | ActorsCrew | None:
    """Return the crew of a run, as each of its processes has it; None if it is one process. Raises UserError."""
    concurrency, size = config.concurrency, started()
    if isinstance(concurrency, SyncConfig):
        return _learners_with_actors(config, concurrency)
    if isinstance(concurrency, DdpConfig):
        return _learners(config, concurrency)
    if size > 1:
        modes = MODES.get(starter(), "ddp, sync, seed, async or rma")
        raise UserError(f"{size} processes were started, and concurrency={concurrency.name} is one: write concurrency={modes}")
    return None


def _other_number(concurrency: DdpConfig | SyncConfig, size: int) -> UserError:
    given = f"concurrency.processes={concurrency.processes}, and {starter()} has started {size}"
    return UserError(f"{given}: leave it out, or continue a run with concurrency.processes=null")


# Data-parallel learners ---------------------------------------------------------------------------------------------


@cache
def team() -> StoreRanks:
    """Return the ranks of a data-parallel run; all processes that were started are among them."""
    from warprun.parallel.store import StoreRanks

    return StoreRanks(rank(), started())


def _learners(config: Config, concurrency: DdpConfig) -> DdpCrew | None:
    size = started()
    if concurrency.processes not in (None, size):
        if not starter() or size == 1:
            raise UserError("concurrency.processes: only the command line starts processes; leave it out")
        raise _other_number(concurrency, size)
    if size == 1 and not starter() and concurrency.processes is None:
        raise UserError("concurrency=ddp needs several processes: add concurrency.processes=2, or start them with srun or torchrun")
    if size > config.n_envs:
        raise UserError(f"concurrency=ddp: n_envs={config.n_envs} gives some of {size} processes no environment")
    if size == 1:
        return None
    from warprun.parallel.ddp import DdpCrew, check_shares

    check_shares(config, size)
    team().begin(concurrency.timeout_s)
    return DdpCrew(team())


# Learners and actors ------------------------------------------------------------------------------------------------


def communicator() -> MPI.Intracomm:
    """Return the communicator of all processes. Raises UserError."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of mixed MPIs, which are refused below
            from mpi4py import MPI
    except ImportError as error:
        raise UserError(f"learners and actors need mpi4py ({one_line(error)}): pip install 'warprun[mpi]'") from None
    except RuntimeError as error:
        reason = one_line(error).removeprefix("RuntimeError: ").partition("\n")[0]
        raise UserError(f"mpi4py finds no MPI library ({reason:.120}): pip install 'warprun[mpi]', or load that of the cluster") from None
    if MPI.COMM_WORLD.size == 1:
        library = MPI.Get_library_version().split("\n")[0].strip()
        raise UserError(
            f"two MPIs are mixed: {started()} processes were started, and mpi4py, which uses {library}, sees only itself in"
            " each; start them with the mpiexec of that MPI"
        )
    return MPI.COMM_WORLD


@cache
def meet() -> None:
    """Meet all processes, once, and remove the names of the shared memory that MPICH maps on a machine.

    All ranks have mapped it at the start, and it lives as long as they do: a run that is killed leaves nothing in /dev/shm.
    """
    comm = communicator()
    wait(comm.Ibarrier().Test)
    with suppress(OSError), open("/proc/self/maps") as maps:
        for path in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
            with suppress(FileNotFoundError):  # another rank was first
                os.unlink(path)
    wait(comm.Ibarrier().Test)


def _learners_with_actors(config: Config, concurrency: SyncConfig) -> ActorsCrew:
    if starter() == "torchrun":
        raise UserError(f"concurrency={concurrency.name} is not started with torchrun: start it with mpiexec or srun")
    size = communicator().size if started() > 1 else 1
    if size == 1 and concurrency.processes is not None:
        raise UserError("concurrency.processes: only the command line starts processes; leave it out with mpiexec")
    if size == 1:
        raise UserError(
            f"concurrency={concurrency.name} needs several processes: add concurrency.processes=4, or start them with"
            " `mpiexec -n 4 warprun ...`"
        )
    if concurrency.processes not in (None, size):
        raise _other_number(concurrency, size)
    from warprun.parallel import world
    from warprun.parallel.launch import layout

    joined = world.meet(communicator(), layout(config, size), concurrency.timeout_s)
    from warprun.parallel.actors import ActorsCrew

    return ActorsCrew(joined)
