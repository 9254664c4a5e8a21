"""Learners and actors over MPI: how their processes are started, and where they meet. MPI is imported only where it is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from warprun.config.schema import Config, SyncConfig
from warprun.errors import UserError, one_line
from warprun.parallel.leftovers import removed
from warprun.processes import last_word, started

if TYPE_CHECKING:
    from mpi4py import MPI

    from warprun.parallel.world import World

RANK_0_SPEAKS_S = 3.0
"""Time that rank 0 has to say what is wrong, before another rank does."""


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


@cache
def meet() -> None:
    """Meet all processes, once."""
    comm = communicator()
    from warprun.agreement import unlink_shared_memory

    unlink_shared_memory(comm)


def agree(own: str, error: Exception | None) -> None:
    """Agree over all processes whether one has failed, see `agreement.agree`, and meet them if none has."""
    comm = communicator()
    from warprun import agreement

    agreement.agree(comm, own, lambda rank: f"rank {rank}", error)
    meet()


def with_all_ranks(command: Callable[[], int]) -> int:
    """Execute a command in rank 0, whose environments the other ranks serve; return the exit code."""
    meet()
    from warprun.agreement import wait
    from warprun.simulation.external.leading import attend

    place = attend()
    if place.led:
        try:
            return command()
        finally:
            place.release()
    try:
        place.serve(patience=wait)
    except Exception as error:
        time.sleep(RANK_0_SPEAKS_S)  # it ends all ranks if it has failed in the same way
        last_word(f"warprun: error: {place.name}: {one_line(error)}")
        os._exit(1)
    return 0


def world_of(config: Config, concurrency: SyncConfig) -> World:
    """Return the ranks of a run of learners and actors. Every process calls this, after `agree`. Raises UserError."""
    size = communicator().size if started() > 1 else 1
    if size == 1 and concurrency.processes is not None:
        raise UserError("concurrency.processes: only the command line starts processes; leave it out with mpiexec")
    if size == 1:
        raise UserError(
            f"concurrency={concurrency.name} needs several processes: add concurrency.processes=4, or start them with"
            " `mpiexec -n 4 warprun ...`"
        )
    if concurrency.processes not in (None, size):
        raise UserError(f"concurrency.processes={concurrency.processes}, and {size} processes were started: leave it out")
    from warprun.parallel.layout import layout
    from warprun.parallel.world import meet

    return meet(communicator(), layout(config, size), concurrency.timeout_s)


def mpiexec() -> str:
    """Return the mpiexec of this Python environment, or the first on the PATH. Raises UserError if there is none."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise UserError("there is no mpiexec, which starts several processes: pip install 'warprun[mpi]', or load the MPI of the cluster")
    return found


def start(config: Config, concurrency: SyncConfig, arguments: Sequence[str]) -> int:
    """Start the processes of a run with mpiexec on this machine, wait for them, and return the exit code. Raises UserError."""
    from warprun.parallel.layout import layout

    assert concurrency.processes
    if concurrency.ranks_per_env == 1:  # else the processes find out
        layout(config, concurrency.processes)
    command = [mpiexec(), "-n", str(concurrency.processes), sys.executable, "-m", "warprun", *arguments]
    with removed():
        return subprocess.call(command)
