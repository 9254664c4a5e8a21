"""Whether mpiexec, srun or torchrun has started this process as one of several. Light: nothing but the environment."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which mpiexec of MPICH, that of Open MPI, and srun say how many processes they have started."""
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Variables in which they say which of them this one is."""
OF_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Those that torchrun sets, and `cli.launch`; they hold if all are set."""
PARENT = "WARPRUN_PARENT"
"""Number of the process that started this one as a rank and ends with it."""
SOCKET = "WARPRUN_SOCKET"
"""Number of an open socket at which rank 0 listens, if `cli.launch` has made one."""
FIRST_WAITS_S, OTHERS_WAIT_S = 4.0, 15.0
"""Seconds that a rank waits after a failure until all come to their end: rank 0, or another if rank 0 is lost; and the others."""
STUCK_S = 60
"""Seconds that the end of a process may take after that."""


def has_torch_variables() -> bool:
    """Return whether the variables of torchrun are set."""
    return all(os.environ.get(name) for name in OF_TORCH)


def starter() -> str:
    """Return what started this process as one of several, or perhaps as the only one: torchrun, mpiexec or srun; empty: nothing."""
    if has_torch_variables():
        return "torchrun"
    by_mpi = next((os.environ[name] for name in SIZES[:2] if os.environ.get(name, "").isdigit()), "")
    by_srun = os.environ.get(SIZES[2], "")
    if by_mpi and by_mpi != by_srun:  # srun may set the variables of MPI, too
        return "mpiexec"
    return "srun" if by_srun.isdigit() else ""


def started() -> int:
    """Return how many processes mpiexec, srun or torchrun has started for this command; 1 if none did."""
    names = ("WORLD_SIZE",) if has_torch_variables() else SIZES
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), 1)


def rank() -> int:
    """Return which of the started processes this one is."""
    names = ("RANK",) if has_torch_variables() else RANKS
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), 0)


def is_first() -> bool:
    """Return whether this process speaks for the command."""
    return started() == 1 or rank() == 0


def on_this_machine() -> tuple[int, int]:
    """Return which of the started processes of this machine this one is, and their number, as far as it is known: else 0 and 1."""
    for place, count in (("LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")):
        if os.environ.get(place, "").isdigit():
            size = os.environ.get(count, "")
            return int(os.environ[place]), int(size) if size.isdigit() else 1
    return 0, 1


def meeting_place() -> tuple[str, int]:
    """Return host and port where rank 0 waits for the others: those of torchrun, or of srun its first node and a port of the step."""
    if has_torch_variables():
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    nodes = os.environ.get("SLURM_STEP_NODELIST", os.environ.get("SLURM_JOB_NODELIST", "localhost"))
    number = 131 * int(os.environ.get("SLURM_JOB_ID", "0")) + int(os.environ.get("SLURM_STEP_ID", "0"))
    port = os.environ.get("MASTER_PORT", "")
    # Below the ports that systems give to outgoing connections.
    return os.environ.get("MASTER_ADDR") or first_node(nodes), int(port) if port.isdigit() else 10_000 + number % 20_000


def first_node(nodes: str) -> str:
    """Return the first of a list of nodes as SLURM writes it: `gpu[03-05,7]-a,cpu1` is `gpu03-a`."""
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", re.split(r",(?![^\[]*\])", nodes)[0])


def take_share() -> None:
    """Use this process's share of the cores and of the GPUs of its machine, where what started it has not dealt them out."""
    place, count = on_this_machine()
    if starter() == "torchrun" and count > 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, share_of_cores(place, count))
    gpus = visible_gpus()
    if count <= len(gpus) and len(gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[place]


def share_of_cores(place: int, count: int) -> list[int]:
    """Return the cores for number `place` of `count` processes that share those of this one: neighbours, or one core that several use."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[place * len(cores) // count : (place + 1) * len(cores) // count] or [cores[place % len(cores)]]


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process may use. CUDA itself cannot be asked: it would keep to its answer."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name]
    return [str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]


def end_with_parent() -> None:
    """End this process if the one that has started it as a rank ends without having ended it."""
    parent = os.environ.get(PARENT, "")
    if parent.isdigit() and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != int(parent):
            os._exit(1)


def place() -> str:
    """Return a name of the machine, or of the container, in which numbers of processes are those of this process, too."""
    with suppress(OSError):
        return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/pid')}"
    return f"{socket.gethostname()}/{os.getpid()}"


def has_ended(process: int) -> bool:
    """Return whether a process of this machine has ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


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

    mpiexec and srun end all ranks as soon as one ends with a code other than 0: only rank 0 does, after it has said what is wrong, unless
    it is itself lost. The end of MPI would wait for ranks that never come to it: if not all do, this process ends here.
    """
    speaks = is_first() or first_is_lost
    if first_is_lost:
        code = code_of_lost()
    silence()
    for number in (signal.SIGINT, signal.SIGTERM):  # mpiexec sends them as soon as rank 0 has ended; the code would be theirs
        signal.signal(number, signal.SIG_IGN)
    code = code if speaks else 0
    if not _all_come(FIRST_WAITS_S if speaks else OTHERS_WAIT_S):
        os._exit(code)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(STUCK_S)
    return code


def _all_come(timeout_s: float) -> bool:
    """Return whether all ranks of MPI come to this call, as far as it is in use."""
    library = sys.modules.get("mpi4py.MPI")
    if library is None or not library.Is_initialized() or library.Is_finalized():
        return True
    deadline = time.monotonic() + timeout_s
    barrier = library.COMM_WORLD.Ibarrier()
    while not barrier.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


first_is_lost = False
"""Whether rank 0 gives no sign of life any more."""
FIRST_IS_LOST = 113
"""Exit code of the other ranks then, which tells the process that started them to wait no longer; no other program is likely to have it."""


def code_of_lost() -> int:
    """Return the exit code of this process if rank 0 is lost."""
    return FIRST_IS_LOST if PARENT in os.environ else 1
