"""The processes of a command: which of them this one is, what each does, what all agree on. Light: no MPI, no torch."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warprun.errors import OtherRankError, UserError, one_line, require, shown

if TYPE_CHECKING:
    from mpi4py import MPI

SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which mpiexec of MPICH, that of Open MPI, and srun say how many processes they have started."""
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Variables in which they say which of them this one is."""
OF_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Those that torchrun sets, and `parallel.launch`; they hold if all are set."""
PARENT = "WARPRUN_PARENT"
"""Number of the process that started this one as a rank and ends with it."""
SOCKET = "WARPRUN_SOCKET"
"""Number of an open socket at which rank 0 listens, if `parallel.launch` has made one."""
FIRST_WAITS_S, OTHERS_WAIT_S = 4.0, 15.0
"""Seconds that a rank waits after a failure for the end of all: rank 0, or another if that is lost; and the others."""
STUCK_S = 60
"""Seconds that the end of a process may take after that."""

# How this process was started ---------------------------------------------------------------------------------------


def has_torch_variables() -> bool:
    """Return whether the variables of torchrun are set."""
    return all(os.environ.get(name) for name in OF_TORCH)


def starter() -> str:
    """Return the program that started this process as one of several, or perhaps as the only one.

    That is torchrun, mpiexec or srun; empty: none of them.
    """
    if has_torch_variables():
        return "torchrun"
    by_mpi = next((os.environ[name] for name in SIZES[:2] if os.environ.get(name, "").isdigit()), "")
    by_srun = os.environ.get(SIZES[2], "")
    if by_mpi and by_mpi != by_srun:  # srun may set the variables of MPI, too
        return "mpiexec"
    return "srun" if by_srun.isdigit() else ""


def started() -> int:
    """Return how many processes mpiexec, srun or torchrun has started for this command; 1 if none did."""
    return _number(("WORLD_SIZE",) if has_torch_variables() else SIZES, 1)


def rank() -> int:
    """Return which of the started processes this one is."""
    return _number(("RANK",) if has_torch_variables() else RANKS, 0)


def is_first() -> bool:
    """Return whether this process speaks for the command."""
    return started() == 1 or rank() == 0


def _number(names: Sequence[str], otherwise: int) -> int:
    """Return the value of the first of these variables that holds a number."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), otherwise)


def meeting_place() -> tuple[str, int]:
    """Return host and port where rank 0 waits for the others.

    They are those of torchrun, or of srun its first node and a port of the step. Raises UserError.
    """
    if has_torch_variables():
        port = os.environ["MASTER_PORT"]
        require(port.isdecimal() and 0 < int(port) < 2**16, f"MASTER_PORT={shown(port)} must be the number of a port")
        return os.environ["MASTER_ADDR"], int(port)
    nodes = os.environ.get("SLURM_STEP_NODELIST", os.environ.get("SLURM_JOB_NODELIST", "localhost"))
    number = 131 * int(os.environ.get("SLURM_JOB_ID", "0")) + int(os.environ.get("SLURM_STEP_ID", "0"))
    # Below the ports that systems give to outgoing connections.
    return os.environ.get("MASTER_ADDR") or first_node(nodes), _number(("MASTER_PORT",), 10_000 + number % 20_000)


def first_node(nodes: str) -> str:
    """Return the first of a list of nodes as SLURM writes it: `gpu[03-05,7]-a,cpu1` is `gpu03-a`."""
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", re.split(r",(?![^\[]*\])", nodes)[0])


# Its machine --------------------------------------------------------------------------------------------------------


def usable_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_this_machine() -> tuple[int, int]:
    """Return which of the started processes of this machine this one is, and their number; if unknown 0 and 1."""
    for place, count in (("LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")):
        if os.environ.get(place, "").isdigit():
            return int(os.environ[place]), _number((count,), 1)
    return 0, 1


def share_of_cores(place: int, count: int) -> list[int]:
    """Return the cores for number `place` of `count` processes that share those of this one.

    They are neighbours, or one core that several use.
    """
    cores = sorted(os.sched_getaffinity(0))
    return cores[place * len(cores) // count : (place + 1) * len(cores) // count] or [cores[place % len(cores)]]


def machine_name() -> str:
    """Return a name of the machine, or container, in which numbers of processes are those of this process, too."""
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


# Its output and its end ---------------------------------------------------------------------------------------------

_voice = 2
"""Standard error as the process found it."""
first_is_lost = False
"""Whether rank 0 gives no sign of life any more."""
FIRST_IS_LOST = 113
"""Exit code of the other ranks then; the process that started them recognizes it, because hardly another program has it."""


def silence() -> None:
    """Let this process print nothing any more, unless by `last_word`: rank 0 speaks for all."""
    global _voice
    _voice = os.dup(2)
    _redirect(os.open(os.devnull, os.O_WRONLY))


def last_word(text: str) -> None:
    """Print a line on standard error, also from a process that is silent."""
    with suppress(OSError):
        os.write(_voice, f"{text}\n".encode())


def print_to(path: Path) -> None:
    """Append everything that this process prints from now on to a file."""
    path.parent.mkdir(exist_ok=True)
    sys.stdout.flush()
    _redirect(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666))


def _redirect(handle: int) -> None:
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.close(handle)


def end_with_parent() -> None:
    """End this process if the one that has started it as a rank ends without having ended it."""
    parent = os.environ.get(PARENT, "")
    if not parent.isdigit():
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != int(parent):
            os._exit(1)
    else:
        threading.Thread(target=_end_after, args=(int(parent),), name="warprun-parent", daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def code_of_lost() -> int:
    """Return the exit code of this process if rank 0 is lost."""
    return FIRST_IS_LOST if PARENT in os.environ else 1


def code_of_rank(code: int) -> int:
    """Return the exit code of this process, one of several of which one has failed; let it end silently and in time.

    mpiexec and srun end all ranks as soon as one ends with a code other than 0. So ranks other than 0 exit with 0, unless
    rank 0 is lost, and rank 0 exits after it has said why. MPI_Finalize waits for all ranks: if some do not come, this
    process exits at once.
    """
    speaks = is_first() or first_is_lost
    if first_is_lost:
        code = code_of_lost()
    silence()
    for number in (signal.SIGINT, signal.SIGTERM):  # mpiexec sends them when rank 0 has ended; the code would be theirs
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
    return wait(library.COMM_WORLD.Ibarrier().Test, timeout_s)


# What each does -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The roles of processes: 0 to learners - 1 learn. The others are groups of `ranks_per_env` consecutive ones, whose
    first one is an actor; the rest serves its environments. Each learner gets the rollouts of its own actors.

    Processes are numbered as MPI does. Processes that only serve environments have no rank: `rank` numbers
    learners and actors without them.
    """

    learners: int
    actors: int
    ranks_per_env: int = 1

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.learners + self.actors * self.ranks_per_env

    def name(self, process: int) -> str:
        """Return a process with its role, for messages: "rank 3 (actor 1)"."""
        if process < self.learners:
            return f"rank {process} (learner {process})"
        role = "serves the environment of actor" if self.serves(process) else "actor"
        return f"rank {process} ({role} {self.actor_of(process)})"

    def serves(self, process: int) -> bool:
        """Return whether a process only serves the environments of an actor."""
        return process >= self.learners and (process - self.learners) % self.ranks_per_env > 0

    def leader(self, actor: int) -> int:
        """Return the process that an actor is."""
        return self.learners + actor * self.ranks_per_env

    def servers(self, actor: int) -> list[int]:
        """Return the processes that serve the environments of an actor."""
        return list(range(self.leader(actor) + 1, self.leader(actor) + self.ranks_per_env))

    def actor_of(self, process: int) -> int:
        """Return the actor that a process is, or serves."""
        return (process - self.learners) // self.ranks_per_env

    def rank(self, actor: int) -> int:
        """Return the rank of an actor, counted without processes that serve."""
        return self.learners + actor

    def actor(self, rank: int) -> int:
        """Return the number of the actor that `rank`, counted without processes that serve, is."""
        return rank - self.learners

    def actors_of(self, learner: int) -> range:
        """Return the actors of a learner: equal shares, of which the first ones may have one more."""
        share, more = divmod(self.actors, self.learners)
        begin = learner * share + min(learner, more)
        return range(begin, begin + share + (learner < more))

    def learner_of(self, actor: int) -> int:
        """Return the learner of an actor."""
        return next(learner for learner in range(self.learners) if actor in self.actors_of(learner))


def fit(size: int, learners: int, ranks_per_env: int) -> Layout:
    """Return the layout of `size` processes. Raises UserError if there is none."""
    actors, left = divmod(size - learners, ranks_per_env)
    if actors < learners:
        of_each = "" if ranks_per_env == 1 else f" of {ranks_per_env} processes"
        raise UserError(
            f"every learner needs an actor{of_each}, so concurrency.learners={learners} needs"
            f" {learners * (1 + ranks_per_env)} processes or more, not {size}"
        )
    if left:
        below = size - left
        raise UserError(
            f"concurrency.ranks_per_env={ranks_per_env}: {size} processes do not fit; with learners={learners} start"
            f" {below} or {below + ranks_per_env}"
        )
    return Layout(learners, actors, ranks_per_env)


# What all agree on --------------------------------------------------------------------------------------------------

PAUSE_S = 1e-3
"""Sleep between two looks at whether all ranks are there: waiting within MPI would take all of a core."""
PATIENCE_S = 10.0
"""Time that a rank which has failed waits for the others to hear it: they may wait for this one in code of the user."""
FAILED = 2
"""Exit code of a process that cannot tell the others that it has failed."""


def wait(is_done: Callable[[], bool], timeout_s: float = float("inf")) -> bool:
    """Wait until `is_done`, at most `timeout_s`; return whether it is."""
    deadline = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_S)
    return True


class Ranks(ABC):
    """All processes of a command, as they agree before the first rollout; a subclass for each way of their words.

    Every process calls the same methods in the same order.
    """

    def __init__(self, rank: int, name: Callable[[int], str] = "rank {}".format) -> None:
        """`name` returns a rank for messages."""
        self.rank, self.name = rank, name

    @abstractmethod
    def gather(self, text: str) -> list[str]:
        """Return the texts of all processes, in the order of their ranks."""

    @abstractmethod
    def gather_failures(self, own: str) -> list[str]:
        """Return the failures of all processes, empty where there is none, so that all know them when rank 0 ends."""

    def share(self, text: str) -> str:
        """Return the text of rank 0."""
        return self.gather(text)[0]

    def agree(self, error: Exception | None = None, words: str = "") -> None:
        """Return if no process has an error; `words` are for the others, by default the error in one line.

        Else raise: in rank 0 its own error, or a UserError that names the first rank that failed; in the others
        OtherRankError.
        """
        failures = self.gather_failures(words or one_line(error) if error else "")
        if not any(failures):
            return
        if self.rank:
            raise OtherRankError from error
        if error:
            raise error
        first = next(rank for rank, failure in enumerate(failures) if failure)
        raise UserError(f"{self.name(first)}: {failures[first]}")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do something in all processes or in none: if it fails in one, it fails in all, see `agree`."""
        try:
            yield
        except Exception as error:
            self.agree(error)
        else:
            self.agree()


class MpiRanks(Ranks):
    """The processes of MPI."""

    def __init__(self, comm: MPI.Intracomm, name: Callable[[int], str] = "rank {}".format) -> None:
        super().__init__(comm.rank, name)
        self.comm = comm

    def gather(self, text: str) -> list[str]:
        """Return the texts of all processes."""
        wait(self.comm.Ibarrier().Test)
        return list(self.comm.allgather(text))

    def gather_failures(self, own: str) -> list[str]:
        """Return the failures of all processes; if this one has one, and the others do not come, end them all."""
        if own and not wait(self.comm.Ibarrier().Test, PATIENCE_S):
            last_word(f"warprun: error: {self.name(self.rank)}: {own}" if self.rank else f"warprun: error: {own}")
            os._exit(FAILED)  # mpiexec then ends the others
        return list(self.comm.allgather(own)) if own else self.gather(own)
