"""Starting the processes of a run on this machine: one by one for data-parallel learners, else with mpiexec."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from warprun.config.schema import Config, load_environment
from warprun.errors import UserError, signal_name, typed
from warprun.kernels.driver import visible_gpus, why_no_cuda
from warprun.processes import FIRST_IS_LOST, PARENT, SOCKET, Layout, fit
from warprun.runs import signals

GRACE_S = 10.0
"""Seconds that the others have to end after one process has failed: they find it, and rank 0 says so."""
LOOK_S = 0.05
SHARED_MEMORY = Path("/dev/shm")
OF_MPI = ("mpich_sh*", "ucx_shm_*")
"""Names that MPICH gives to shared memory: for a moment, while its processes meet."""


def start(config: Config, arguments: Sequence[str]) -> int:
    """Start the processes of a run on this machine, wait for them, and return the exit code. Raises UserError."""
    concurrency, count = config.concurrency, config.concurrency.wanted
    assert count
    if not concurrency.has_actors:
        return start_ranks(config, count, arguments)
    if concurrency.parallel.ranks_per_env == 1:  # else the processes find out
        layout(config, count)
    command = [mpiexec(), "-n", str(count), sys.executable, "-m", "warprun", *arguments]
    with leftovers_removed():
        return subprocess.call(command)


# Learners and actors ------------------------------------------------------------------------------------------------


def layout(config: Config, size: int) -> Layout:
    """Return the layout of a run of `size` processes. Raises UserError if they do not fit the settings."""
    concurrency, n_envs = config.concurrency, config.n_envs
    learners, ranks_per_env = concurrency.parallel
    found = fit(size, learners, ranks_per_env)
    actors = found.actors
    if n_envs % actors:
        fitting = concurrency.shareable(n_envs, size)
        raise UserError(f"n_envs={n_envs} cannot be shared out evenly to {actors} actors; n_envs={fitting} can")
    if not concurrency.one_by_one and actors % learners:
        few, many = actors // learners * learners, (actors // learners + 1) * learners
        first, second = (learners + count * ranks_per_env for count in (few, many))
        raise UserError(
            f"concurrency={concurrency.name}: {actors} actors cannot be shared out evenly to {learners} learners;"
            f" {few} or {many} actors can: start {first} or {second} processes"
        )
    spec = load_environment(config.env, concurrency.parallel)[0].spec
    # An update of a learner takes a rollout of one actor, or of all that it has.
    config.agent.check_run(spec, n_envs // (actors if concurrency.one_by_one else learners), config.total_steps)
    return found


def mpiexec() -> str:
    """Return the mpiexec of this Python environment, or the first on the PATH. Raises UserError if none tells how runs end."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise UserError("there is no mpiexec, which starts several processes: pip install 'warprun[mpi]', or load the MPI of the cluster")
    if Path(found).resolve().name == "mpiexec.slurm":
        raise UserError(
            f"{typed(Path(found))} calls srun and reports success whatever happens: pip install 'warprun[mpi]', load another MPI,"
            " or start the processes with srun, without concurrency.processes"
        )
    return found


@contextmanager
def leftovers_removed() -> Iterator[None]:
    """Remove at the end the shared memory that killed processes of MPI of this context have left."""
    before = shared_memory()
    try:
        yield
    finally:
        for path in leftovers(before):
            with suppress(OSError):
                path.unlink()


def leftovers(before: set[Path]) -> set[Path]:
    """Return the shared memory of MPI that is not among `before` and that no process holds."""
    # The order matters: a process that makes such a file opens it, maps it, and only then closes it.
    new = shared_memory() - before
    return new - (_opened() | _mapped()) if new else set()


def shared_memory() -> set[Path]:
    """Return the files of shared memory of MPI that this user has."""
    found = set()
    for path in (path for name in OF_MPI for path in SHARED_MEMORY.glob(name)):
        with suppress(OSError):
            if path.stat().st_uid == os.getuid():
                found.add(path)
    return found


def _opened() -> set[Path]:
    """Return the files that processes of this user have open."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            found.add(link.readlink())
    return found


def _mapped() -> set[Path]:
    """Return the files in /dev/shm that are part of the memory of processes of this user."""
    found = set()
    for table in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            lines = table.read_text().splitlines()
            found |= {Path(line.split()[5]) for line in lines if f"{SHARED_MEMORY}/" in line}
    return found


# Data-parallel learners ---------------------------------------------------------------------------------------------


def start_ranks(config: Config, size: int, arguments: Sequence[str]) -> int:
    """Start the ranks of a data-parallel run, wait for them, and return the exit code. Raises UserError."""
    check_gpus(config, size)
    # Ranks are in a session of their own: Ctrl-C of a terminal is passed on like every other signal, to rank 0 alone.
    with socket.create_server(("127.0.0.1", 0)) as server:
        ranks = [_rank(rank, size, server, arguments) for rank in range(size)]
    try:
        with signals.requests.passed_on(lambda number: _send(ranks[0], number)):
            return _wait(ranks)
    finally:
        for process in ranks:
            _send(process, signal.SIGKILL)
            process.wait()


def check_gpus(config: Config, processes: int) -> None:
    """Raise UserError if there are fewer GPUs than processes that each need one."""
    if config.device in ("cpu", "cudasim") or why_no_cuda() is not None:
        return
    count = len(visible_gpus())
    if count < processes:
        raise UserError(
            f"concurrency.processes={processes}: every process needs a GPU of its own, and this machine has {count};"
            f" concurrency.processes={count}, or device=cpu"
        )


def _rank(rank: int, size: int, server: socket.socket, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    given: dict[str, object] = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": server.getsockname()[1],
        PARENT: os.getpid(),
    }
    if rank == 0:
        given[SOCKET] = server.fileno()
    return subprocess.Popen(
        [sys.executable, "-m", "warprun", *arguments],
        env=os.environ | {name: str(value) for name, value in given.items()},
        pass_fds=(server.fileno(),) if rank == 0 else (),
        start_new_session=True,
    )


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    """Return the exit code of the run; after one process has failed, the others have a moment to end."""
    failed_s: float | None = None
    while any(process.poll() is None for process in ranks):
        time.sleep(LOOK_S)
        if failed_s is None and any(process.poll() for process in ranks):
            failed_s = time.monotonic()
        if _is_said(ranks) or (failed_s is not None and time.monotonic() - failed_s > GRACE_S):
            break
    codes = [process.poll() for process in ranks]
    first, *others = codes
    if first is not None and first > 0:
        return first
    if FIRST_IS_LOST in others:
        return 1
    killed = next(((rank, -code) for rank, code in enumerate(codes) if code is not None and code < 0), None)
    if killed:  # before the ranks have met, none of them sees it
        rank, number = killed
        how = f"its process {ranks[rank].pid} was ended by {signal_name(number)}"
        print(f"warprun: error: rank {rank} is lost: {how}", file=sys.stderr, flush=True)
    return max((1 if code is None or code < 0 else code) for code in codes)


def _is_said(ranks: list[subprocess.Popen[bytes]]) -> bool:
    """Return whether rank 0 has failed and said why, or all others have ended because it is lost."""
    first, *others = (process.poll() for process in ranks)
    return (first or 0) > 0 or (None not in others and FIRST_IS_LOST in others)


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
