"""Commands that run in several processes: which rank this one is, and how they are started. No torch; MPI only where it is needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from warprun.config.schema import Config, SyncConfig
from warprun.errors import UserError, one_line
from warprun.processes import started

if TYPE_CHECKING:
    from mpi4py import MPI

    from warprun.actors.world import World

T = TypeVar("T")


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
    comm = MPI.COMM_WORLD
    if comm.size == 1:
        library = MPI.Get_library_version().split("\n")[0].strip()
        raise UserError(
            f"two MPIs are mixed: {started()} processes were started, and mpi4py, which uses {library}, sees only itself in"
            " each; start them with the mpiexec of that MPI"
        )
    return comm


def in_all_ranks(compose: Callable[[], T]) -> T:
    """Return what `compose` returns in every process that was started. Raises UserError in all of them if it fails in one."""
    if started() == 1:
        return compose()
    comm = communicator()
    from warprun.actors.agreement import agree, unlink_shared_memory

    unlink_shared_memory(comm)
    try:
        made = compose()
    except Exception as error:
        agree(comm, one_line(error), lambda rank: f"rank {rank}", error)
        raise
    agree(comm, "", lambda rank: f"rank {rank}", None)
    return made


def world_of(config: Config) -> World | None:
    """Return the ranks of a run; None if it is one process. Every process calls this, after `in_all_ranks`. Raises UserError."""
    concurrency, size = config.concurrency, communicator().size if started() > 1 else 1
    if not isinstance(concurrency, SyncConfig):
        if size > 1:
            raise UserError(f"{size} processes were started, and concurrency={concurrency.name} is one: write concurrency=async, or sync")
        return None
    if size == 1 and concurrency.processes is not None:
        raise UserError("concurrency.processes: only the command `warprun train` starts processes, and no sweep; leave it out with mpiexec")
    if size == 1:
        raise UserError(
            f"concurrency={concurrency.name} needs several processes: add concurrency.processes=4, or start them with"
            " `mpiexec -n 4 warprun ...`"
        )
    if concurrency.processes not in (None, size):
        raise UserError(f"concurrency.processes={concurrency.processes}, and {size} processes were started: leave it out")
    from warprun.actors.layout import layout
    from warprun.actors.world import meet

    return meet(communicator(), layout(config, size), concurrency.timeout_s)


def starts_processes(config: Config) -> bool:
    """Return whether this command has to start the processes of the run."""
    return isinstance(config.concurrency, SyncConfig) and config.concurrency.processes is not None and started() == 1


def start(config: Config, arguments: Sequence[str]) -> int:
    """Start the processes of a run with mpiexec on this machine, wait for them, and return the exit code. Raises UserError."""
    from warprun.actors.layout import layout

    layout(config, config.concurrency.processes)
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise UserError("concurrency.processes: there is no mpiexec: pip install 'warprun[mpi]', or load the MPI of the cluster")
    command = [mpiexec, "-n", str(config.concurrency.processes), sys.executable, "-m", "warprun", *arguments]
    return subprocess.call(command)
