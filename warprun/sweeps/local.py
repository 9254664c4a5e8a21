"""The launcher `local`: the jobs of a sweep in processes on this machine. No torch."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from warprun.config.memory_estimate import CUDA_CONTEXT, size_text
from warprun.errors import UserError, counted, signal_name
from warprun.kernels.driver import free_cuda_memory, visible_gpus, why_no_cuda
from warprun.processes import share_of_cores, usable_cores
from warprun.runs import rundir, signals
from warprun.sweeps.launcher import Launcher, write_end
from warprun.sweeps.plan import Job

LOOK_S = 0.05
"""Seconds between two looks of a worker for a job."""
Train = Callable[[str, int], int]
"""Trains the job with a number of a sweep folder in this process, and returns the exit code. It must be importable by its name."""
DONE, FAILED = 0, 1
"""Exit codes of a job."""
TOGETHER = 64
"""Jobs that a process trains together before another one helps it."""
FILES_OF_A_RUN = 8
"""Files that a run has open at most."""
PRELOADED = "warprun.sweeps.preloaded"
"""Module that a server imports once and then forks the workers: its import takes longer than a short run."""
FORKS = sys.platform == "linux"
"""Whether workers are forked. The libraries of macOS that numpy and torch call may crash in a forked process."""
CONTEXT = multiprocessing.get_context("forkserver") if FORKS else multiprocessing.get_context("spawn")
"""Starts the workers."""


def prepare() -> None:
    """Start the server that forks workers: it imports what they need while this process goes on."""
    CONTEXT.set_forkserver_preload([PRELOADED])
    _start_server()


def _start_server() -> None:
    """Start the server that forks workers unless it runs. It blocks signals from its start on; workers unblock them."""
    if FORKS:
        resource_tracker.ensure_running()  # the server starts it otherwise, and that unblocks signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class _Worker:
    """A process that trains jobs: one after the other, or several of a GPU together."""

    process: BaseProcess
    jobs: Connection
    """Takes the number of a job, and gives it back twice: with None when that begins, and with the exit code when it has ended."""
    orders: Connection
    """Takes the number of a signal."""
    taken: set[int] = field(default_factory=set)
    """Numbers of the jobs that it has begun."""
    stops: bool = False
    """Whether it was sent a signal."""


@dataclass
class _Slot:
    """The place of a worker."""

    cores: list[int]
    gpu: str | None
    room: int = 1
    """Jobs at a time."""
    jobs: dict[int, Job] = field(default_factory=dict)
    worker: _Worker | None = None
    ends: bool = False
    """Whether the worker takes no other job: one has failed, so the GPU may be lost, or memory be full."""

    @property
    def free(self) -> int:
        """Jobs that it has room for."""
        return 0 if self.ends else self.room - len(self.jobs)


def shared(gpus: Sequence[str], wanted: int, needed: int) -> tuple[list[str], str]:
    """Deal out `wanted` processes, which take up to `needed` bytes each, to GPUs in turn: at least one, and as many as free memory has room
    for.

    Returns the GPU of each process, and this in words.
    """
    free = {gpu: free_cuda_memory(number) for number, gpu in enumerate(gpus)}
    room = {gpu: wanted if size is None or not needed else max(1, size // needed) for gpu, size in free.items()}
    places = [gpu for turn in range(wanted) for gpu in gpus if turn < room[gpu]][:wanted]
    counts = ", ".join(f"{places.count(gpu)} on GPU {gpu}" for gpu in gpus if gpu in places)
    told = [f"GPU {gpu} {size_text(size)}" for gpu, size in free.items() if size is not None]
    memory = f" (each needs up to {size_text(needed)}; free: {', '.join(told)})" if needed and told else ""
    less = f"; {wanted} do not fit" if len(places) < wanted else ""
    return places, f"{counts} at a time{memory}{less}"


def joined(gpus: Sequence[str], jobs: int, needed: int) -> tuple[list[_Slot], str]:
    """Return places for `jobs` that train together, several in each process, and this in words; each job takes up to `needed` bytes.

    What Python does for a job takes longer than what a GPU does, so up to one process for each core shares a GPU. As many jobs train at a
    time as free memory has room for.
    """
    each = min(max(1, usable_cores() // len(gpus)), -(-jobs // (len(gpus) * TOGETHER)))
    places, slots, told = list(gpus) * each, list[_Slot](), ""
    own = max(1, needed - CUDA_CONTEXT)
    free = {gpu: free_cuda_memory(number) for number, gpu in enumerate(gpus)}
    wanted = -(-jobs // len(places))
    for gpu, cores in zip(places, share_cores(len(places)), strict=True):
        size = free[gpu]
        room = wanted if size is None else min(wanted, max(1, (size // each - CUDA_CONTEXT) // own))
        slots.append(_Slot(cores, gpu, room))
        if room < wanted:
            told = f" (each needs up to {size_text(own)}, and a process {size_text(CUDA_CONTEXT)}; the others wait)"
    counts = [(gpu, sum(slot.room for slot in slots if slot.gpu == gpu)) for gpu in gpus]
    return slots, f"{', '.join(f'{min(count, jobs):,} on GPU {gpu}' for gpu, count in counts)} train together{told}"


class Pool(Launcher):
    """At most `workers` jobs at a time, each in the process of a worker: if it is killed, the others go on, and another takes its place.

    A worker keeps what all jobs need, such as compiled kernels, so a job after its first begins in a fraction of the time. It ends with a
    job that does not end well. The processes belong to the process group of this one. If this process ends, they save a checkpoint and
    end too.
    """

    outlasts = False

    def __init__(
        self,
        folder: Path,
        workers: int | None,
        devices: set[str],
        train: Train,
        needs: Callable[[], int],
        on_cpu: int = 1,
        jobs: int = 1,
    ) -> None:
        """Share cores and GPUs.

        `workers` None: one for each GPU, `on_cpu` without GPUs; `devices`: the values of `device` of the jobs. Several jobs share a GPU
        where its memory has room for them: `needs` returns the bytes that each takes at most, and is called if they would. `jobs`: how many
        there are: on GPUs processes train several together (`simulation.members`) unless `workers` is given.
        """
        gpus = usable_gpus() if devices & {"auto", "cuda"} else []
        count = workers or len(gpus) or on_cpu
        self._folder, self._train = str(folder.absolute()), train
        places: Sequence[str | None] = gpus[:count] or [None] * count
        self._on_gpus = f"GPUs {', '.join(gpus[:count])} in turn" if gpus else ""
        if gpus and count > len(gpus):
            places, self._on_gpus = shared(gpus, count, needs())
        self._slots = [_Slot(cores, gpu) for gpu, cores in zip(places, share_cores(len(places)), strict=True)]
        if gpus and workers is None and jobs > len(gpus):
            self._slots, self._on_gpus = joined(gpus, jobs, needs())
        self.size = sum(slot.room for slot in self._slots)
        self._keeps_workers = "cudasim" not in devices  # Numba reads at its import whether to simulate CUDA
        if self._keeps_workers:
            CONTEXT.set_forkserver_preload([PRELOADED])

    def describe(self) -> str:
        """Return one line that says how cores and GPUs are shared."""
        cores = sorted({len(slot.cores) for slot in self._slots if slot.cores})
        most = counted(cores[-1], "core") if cores else "all cores"
        shares = most if len(cores) < 2 else f"{cores[0]}-{most}"
        each = "" if len(self._slots) == 1 else " each"
        return ", ".join(filter(None, (f"{counted(len(self._slots), 'worker')} with {shares}{each}", self._on_gpus)))

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        """Train jobs in free places."""
        return [str(job.number) for job in jobs if self._start(job)]

    def _start(self, job: Job) -> bool:
        """Train a job in a free place; return False if there is none, or if a signal has ended the server that forks workers."""
        slot = max(self._slots, key=lambda slot: slot.free)
        if not slot.free:
            return False
        if slot.worker and slot.worker.process.exitcode is not None:  # it was killed while it waited
            _end(slot)
        try:
            slot.worker = slot.worker or self._hired(slot)
        except EOFError:
            if signals.requests.number is None:
                raise
            return False
        slot.jobs[job.number] = job
        with suppress(OSError):  # it is killed just now, so its job fails
            slot.worker.jobs.send(job.number)
        return True

    def _hired(self, slot: _Slot) -> _Worker:
        """Return a new worker for a slot."""
        _start_server()
        jobs, its_jobs = CONTEXT.Pipe()
        its_orders, orders = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_work, args=(self._train, self._folder, slot.cores, slot.gpu, slot.room, its_jobs, its_orders))
        process.start()
        its_jobs.close()
        its_orders.close()
        return _Worker(process, jobs, orders)

    def wait(self, within_s: float) -> None:
        """Wait until a job has ended, but no longer than `within_s` seconds."""
        workers = [slot.worker for slot in self._slots if slot.worker and slot.jobs]
        wait([*(worker.jobs for worker in workers), *(worker.process.sentinel for worker in workers)], within_s)

    def alive(self, ids: Sequence[str]) -> set[str]:
        """Return which jobs have not ended. One that could not write its own end has failed; one that its worker had not begun when that
        ended for another job's sake begins in a new worker."""
        again: list[Job] = []
        for slot in self._slots:
            if not slot.jobs or slot.worker is None:
                continue
            worker, code = slot.worker, slot.worker.process.exitcode
            with suppress(EOFError, OSError):  # the worker is gone
                while worker.jobs.poll():
                    number, of_job = worker.jobs.recv()
                    if of_job is None:
                        worker.taken.add(number)
                        continue
                    del slot.jobs[number]
                    slot.ends = slot.ends or of_job != DONE
            if code is not None:
                stops = worker.stops or signals.requests.number is not None
                for number, job in slot.jobs.items():
                    if number not in worker.taken and (worker.taken or stops):
                        again += [] if stops else [job]
                    elif (code and not stops) or rundir.read_status(job.folder):  # else a signal came before it began
                        why = f"its process ended with code {code}; see {job.log}"
                        write_end(job, why if code >= 0 else f"killed by {signal_name(-code)}", exit_code=code)
                slot.jobs.clear()
            if code is not None or (not slot.jobs and (slot.ends or not self._keeps_workers)):
                _end(slot)
        if signals.requests.number is None:
            self.submit(again)
        return {str(number) for slot in self._slots for number in slot.jobs}

    def cancel(self, ids: Sequence[str], number: int = signal.SIGTERM) -> None:
        """Let running jobs save a checkpoint and end; jobs that train together end together."""
        for slot in self._slots:
            if slot.worker and any(str(job) in ids for job in slot.jobs):
                slot.worker.stops = True
                with suppress(OSError):  # it has just ended
                    slot.worker.orders.send(number)

    def close(self) -> None:
        """End the workers; none has a job."""
        for slot in self._slots:
            _end(slot)


def _end(slot: _Slot) -> None:
    """Let the worker of a slot end, and wait for it."""
    if slot.worker:
        slot.worker.jobs.close()
        slot.worker.process.join()
        slot.worker.orders.close()
        slot.worker = None
    slot.ends = False


def usable_gpus() -> list[str]:
    """Return the names of the GPUs that this process may use; none if CUDA does not work here."""
    return visible_gpus() if why_no_cuda() is None else []


def share_cores(count: int) -> list[list[int]]:
    """Return for each of `count` workers the cores that it may use: shares of neighbours, or one that several use.

    On systems that cannot bind a process to cores the lists are empty.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(count)]
    return [share_of_cores(n, count) for n in range(count)]


def _work(train: Train, folder: str, cores: list[int], gpu: str | None, room: int, jobs: Connection, orders: Connection) -> None:
    """Train the jobs that come, up to `room` together, until no more do or one does not end well, and end this process, a worker's."""
    signals.watch()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)  # which the server that forked this process blocks
    threading.Thread(target=_obey, args=(orders,), name="warprun-orders", daemon=True).start()
    if cores:
        os.sched_setaffinity(0, cores)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if room > 1:
        _allow_files(FILES_OF_A_RUN * room)
    with signals.requests.deferred():
        from warprun.simulation.members import Members  # imports torch

    members, ended = Members(), list[tuple[int, int]]()
    failed, kept = 0, False
    while True:
        while not (failed or ended) and (number := _next_job(jobs, waits=not members)) is not None:
            if kept:
                gc.collect()  # a run is a circle of objects, and holds all of its arrays until then
                kept = False
            run = partial(_train, train, folder, number, ended)
            # One that trains alone is no member: it has CUDA graphs of its own, and its children print to its log.
            members.begin(run) if room > 1 else run()
        if not members and not ended:
            sys.exit(failed)  # a GPU may be lost, memory may be full: the next job begins in a new process
        members.go_on()
        for number, code in ended:
            failed, kept = failed or code, True
            with suppress(OSError):
                jobs.send((number, code))
        ended.clear()


def _train(train: Train, folder: str, number: int, ended: list[tuple[int, int]]) -> None:
    """Train a job, and add its number and exit code to those that have ended."""
    code = FAILED
    try:
        code = train(folder, number)
    except UserError as error:  # the folder of the job cannot be written to
        print(f"warprun: error: job {number}: {error}", file=sys.stderr, flush=True)
    except Exception:  # those of other jobs go on
        traceback.print_exc()
    ended.append((number, code))


def _allow_files(count: int) -> None:
    """Let this process have so many more files open, as far as the system does, and never fewer than now."""
    import resource  # not on Windows

    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1024
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def _next_job(jobs: Connection, waits: bool) -> int | None:
    """Return the number of the next job, if `waits` when it comes; None if none does, or after a signal."""
    with signals.requests.deferred(), suppress(EOFError, OSError):
        while signals.requests.number is None:
            if jobs.poll(LOOK_S if waits else 0):
                number: int = jobs.recv()
                jobs.send((number, None))
                return number
            if not waits:
                break
    return None


def _obey(orders: Connection) -> None:
    """Wait for an order of the pool, a signal, and send it to this process; SIGTERM if the pool is gone."""
    try:
        number = orders.recv()
    except (EOFError, OSError):
        number = signal.SIGTERM
    if signals.requests.number is None:  # a terminal sends Ctrl-C to all processes, and a second signal would not wait for a checkpoint
        os.kill(os.getpid(), number)
