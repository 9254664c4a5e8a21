"""What all ranks do together before the first rollout. Light: MPI, no torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from mpi4py import MPI

from warprun import processes
from warprun.errors import OtherRankError, UserError

PAUSE_S = 1e-3
"""Sleep between two looks at whether all ranks are there: waiting within MPI would take all of a core."""
PATIENCE_S = 10.0
"""Time that a rank which has failed waits for the others to hear it: they may wait for this one in code of the user."""
FAILED = 2
"""Exit code of a process that cannot tell the others that it has failed."""


def wait(is_done: Callable[[], bool]) -> None:
    """Wait until `is_done`."""
    while not is_done():
        time.sleep(PAUSE_S)


def meet(comm: MPI.Intracomm) -> None:
    """Wait until all ranks are here."""
    wait(comm.Ibarrier().Test)


def share(comm: MPI.Intracomm, text: str) -> str:
    """Return the text of rank 0."""
    meet(comm)
    return str(comm.bcast(text))


def agree(comm: MPI.Intracomm, own: str, name: Callable[[int], str], error: Exception | None) -> None:
    """Return if `own`, the error of a rank in one line, is empty in all ranks.

    Else raise: in rank 0 a UserError that names the first rank that failed, unless it is rank 0 itself, whose `error` the caller raises;
    in the others OtherRankError. If the others do not come, this rank says what is wrong, and ends them all.
    """
    if own:
        _meet_or_end(comm, f"{name(comm.rank)}: {own}" if comm.rank else own)
    else:
        meet(comm)
    errors = comm.allgather(own)
    if not any(errors):
        return
    if comm.rank:
        raise OtherRankError from error
    if not own:
        first = next(rank for rank, text in enumerate(errors) if text)
        raise UserError(f"{name(first)}: {errors[first]}")


def _meet_or_end(comm: MPI.Intracomm, why: str) -> None:
    request, deadline = comm.Ibarrier(), time.monotonic() + PATIENCE_S
    while not request.Test():
        time.sleep(PAUSE_S)
        if time.monotonic() > deadline:
            processes.last_word(f"warprun: error: {why}")
            os._exit(FAILED)  # mpiexec then ends the others


def unlink_shared_memory(comm: MPI.Intracomm) -> None:
    """Remove the names of the shared memory that MPICH maps on a machine, so that a run that is killed leaves nothing in /dev/shm.

    All ranks have mapped it at the start, and it lives as long as they do.
    """
    meet(comm)
    with suppress(OSError), open("/proc/self/maps") as maps:
        for path in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
            with suppress(FileNotFoundError):  # another rank was first
                os.unlink(path)
    meet(comm)
