"""Whether mpiexec or srun has started this process as one of several. Light: nothing but the environment."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which mpiexec of MPICH, that of Open MPI, and srun say how many processes they have started."""
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Variables in which they say which of them this one is."""
FIRST_ENDS_S, OTHERS_END_S = 4, 15
"""Seconds that the end of MPI may take after a failure: of rank 0, or of another rank if rank 0 is lost; and of the others."""


def started() -> int:
    """Return how many processes mpiexec or srun has started for this command; 1 if neither did."""
    return next((int(os.environ[name]) for name in SIZES if os.environ.get(name, "").isdigit()), 1)


def is_first() -> bool:
    """Return whether this process speaks for the command."""
    return started() == 1 or next((os.environ[name] == "0" for name in RANKS if name in os.environ), True)


def silence() -> None:
    """Let this process print nothing any more, unless by `last_word`: rank 0 speaks for all."""
    global _voice
    _voice = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    os.close(null)


def last_word(text: str) -> None:
    """Print a line on standard error, also from a process that is silent."""
    with suppress(OSError):
        os.write(_voice, f"{text}\n".encode())


_voice = 2
"""Standard error as the process found it."""


def code_of_rank(code: int) -> int:
    """Return the exit code of this process, one of several of which one has failed, and let it end without a word and in time.

    The end of MPI waits for ranks that may be lost. mpiexec ends all ranks as soon as one ends with a code other than 0: only rank 0 does,
    after it has said what is wrong, unless it is itself lost.
    """
    speaks = is_first() or first_is_lost
    silence()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(FIRST_ENDS_S if speaks else OTHERS_END_S)
    return code if speaks else 0


first_is_lost = False
"""Whether rank 0 gives no sign of life any more."""
