"""Step the environments of a pool: in worker processes over shared memory, or in this one. No torch.

A worker reads commands of 9 bytes from one pipe (a letter and the row) and answers through another one: a dot, or an
exclamation mark, the length of a JSON text in 4 bytes, and the text. Everything else goes through shared memory. It ends if the pipe of
commands is closed, and at once if its parent ends: the kernel then sends it SIGIO.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np

from warprun.errors import signal_name
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.external.slice import LOAD, RESET, SAVE, STEP, Job, SharedArrays, Slice
from warprun.simulation.external.sources import EnvironmentFailed

COMMAND = struct.Struct("<cq")
DONE, FAILED = b".", b"!"
IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""Signals that a terminal or a batch system sends to every process of a run: the parent decides."""
CONSTRUCTION_S = 600.0
"""Longest time in which a worker starts and makes one environment."""
LOOK_S = 0.5
"""Time after which a worker that is silent is looked at: a process that it has forked can keep its pipe open after its end."""
GRACE_S = 2.0
"""Time for environments to close before their process is ended."""
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from warprun.simulation.external.workers import main; main(*map(int, sys.argv[2:]))"
)
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that keep the libraries of several workers from using all cores each; values of the user stay."""


def begin(environment: ExternalEnvironment, shared: SharedArrays, workers: int, replaces: bool) -> Workers | Slice:
    """Make the environments whose arrays are `shared`, in so many processes. Raises EnvironmentFailed.

    0: in this process, without a limit of time, and an environment that crashes ends the run.
    """
    jobs = [
        Job(
            recipe=asdict(environment.recipe),
            worker=n,
            begin=first,
            end=end,
            time_limit=None if environment.recipe.vector else environment.spec.time_limit,
            choices=list(environment.spec.groups[0].action.choices),
            replaces=replaces,
        )
        for n, (first, end) in enumerate(shares(len(shared.arrays["seed"]), max(1, workers)))
    ]
    return Workers(shared, jobs, environment.timeout_s) if workers else Slice(shared.arrays, jobs[0])


@dataclass
class _Worker:
    """A process and the ends of its pipes."""

    process: subprocess.Popen[bytes]
    commands: int
    answers: int
    life: int
    """The process ends when this is closed."""

    def dismiss(self) -> None:
        """Let the process close its environments and end."""
        if self.commands >= 0:
            os.close(self.commands)
            self.commands = -1

    def close(self) -> None:
        """End the process at once, with those that it has started."""
        self.dismiss()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.answers)
        os.close(self.life)


class Workers:
    """Worker processes, each with the environments of its job. They start when they are made; `close` ends them."""

    def __init__(self, shared: SharedArrays, jobs: Sequence[Job], timeout_s: float) -> None:
        """Raises EnvironmentFailed if an environment cannot be made."""
        self._at, self._timeout_s = shared.arrays["at"], timeout_s
        self._workers: list[_Worker] = []
        self._poll = select.poll()
        self._of: dict[int, int] = {}
        """Pipe of answers -> number of the worker."""
        try:
            for n, job in enumerate(jobs):
                worker = _start(shared, job)
                self._workers.append(worker)
                self._of[worker.answers] = n
                self._poll.register(worker.answers, select.POLLIN)
            self._wait("its construction", CONSTRUCTION_S)
        except BaseException:
            self._end()
            raise

    def run(self, command: bytes, row: int = 0) -> None:
        message = COMMAND.pack(command, row)
        for worker in self._workers:
            with suppress(BrokenPipeError):  # it has died, which its other pipe tells
                os.write(worker.commands, message)
        self._wait({RESET: "a reset", STEP: "a step", SAVE: "get_state", LOAD: "set_state"}[command], self._timeout_s)

    def close(self) -> None:
        """Let the environments close, and end the processes."""
        for worker in self._workers:
            worker.dismiss()
        deadline = time.monotonic() + GRACE_S
        for worker in self._workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
        self._end()

    def _end(self) -> None:
        """End the processes at once."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def _wait(self, action: str, limit_s: float) -> None:
        """Wait until every worker is done. Raises EnvironmentFailed, after all processes have ended.

        The limit holds for one call of an environment: it begins again for a worker that has come to another call since.
        """
        waiting = set(self._of)
        while waiting:
            before = self._at[:, 1].copy()
            ready = self._poll_until(waiting, action, time.monotonic() + limit_s)
            if not ready:
                stuck = [self._of[answers] for answers in waiting if before[self._of[answers]] == self._at[self._of[answers], 1]]
                if stuck:
                    self._fail(stuck[0], action, f"it takes longer than {limit_s:g} s")
            for answers in ready:
                self._read(answers, action)
                waiting.discard(answers)

    def _poll_until(self, waiting: set[int], action: str, deadline: float) -> list[int]:
        """Return the pipes that have an answer; empty at the deadline. Raises EnvironmentFailed if a process has ended without one."""
        ended: list[int] = []
        while (left := deadline - time.monotonic()) > 0 or ended:
            for_s = 0.0 if ended else min(left, LOOK_S)
            ready = [file for file, event in self._poll.poll(1000 * for_s) if file in waiting or event & select.POLLHUP]
            if ready:
                return ready
            if ended:  # and what it had written before would be there
                self._fail_ended(ended[0], action)
            ended = [self._of[file] for file in waiting if self._workers[self._of[file]].process.poll() is not None]
        return []

    def _read(self, answers: int, action: str) -> None:
        worker = self._of[answers]
        answer = os.read(answers, 1)
        if answer == DONE:
            return
        if answer:
            (length,) = struct.unpack("<I", os.read(answers, 4))
            told = json.loads(_read(answers, length))
            self._end()
            raise EnvironmentFailed(**told)
        self._fail_ended(worker, action)

    def _fail_ended(self, worker: int, action: str) -> None:
        code = self._workers[worker].process.wait()
        ending = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        self._fail(worker, action, f"its process {ending}")

    def _fail(self, worker: int, action: str, reason: str) -> None:
        self._end()
        raise EnvironmentFailed(int(self._at[worker, 0]), action, reason)


def _start(shared: SharedArrays, job: Job) -> _Worker:
    text = json.dumps([shared.layout, job]).encode()
    commands, to_worker = os.pipe()
    answers, from_worker = os.pipe()
    life, held = os.pipe()
    files = (commands, from_worker, life, shared.file)
    program = [sys.executable, "-c", PROGRAM, json.dumps([os.fspath(place) for place in sys.path]), *map(str, files), str(len(text))]
    try:
        process = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__.fileno() if sys.__stderr__ else subprocess.DEVNULL,  # a print must not stand in the output of a command
            pass_fds=files,
            start_new_session=True,
            env={**dict.fromkeys(THREADS, "1"), **os.environ},
        )
    except BaseException:
        for file in (to_worker, answers, held):
            os.close(file)
        raise
    finally:
        for file in (commands, from_worker, life):
            os.close(file)
    with suppress(BrokenPipeError):  # it has died, which its other pipe tells
        while text:
            text = text[os.write(to_worker, text) :]
    return _Worker(process, to_worker, answers, held)


def shares(n_envs: int, workers: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the environments of each worker; sizes differ by at most one."""
    edges = np.linspace(0, n_envs, min(workers, n_envs) + 1).astype(int).tolist()
    return list(pairwise(edges))


# In a worker process ------------------------------------------------------------------------------------------------------


def main(commands: int, answers: int, life: int, memory: int, length: int) -> None:
    """Serve a simulator; the arguments are descriptors, and the length of the job, a JSON text, in the pipe `commands`."""
    for name in IGNORED:
        # Not SIG_IGN, which programs that an environment starts would inherit.
        signal.signal(getattr(signal, name), lambda number, frame: None)
        signal.siginterrupt(getattr(signal, name), False)
    end_with_parent(life)
    layout, job = json.loads(_read(commands, length))
    try:
        part = Slice(SharedArrays(layout, memory).arrays, job)
    except EnvironmentFailed as error:
        _fail(answers, error)
        return
    os.write(answers, DONE)
    serve(commands, answers, part)
    part.close()


def serve(commands: int, answers: int, part: Slice) -> None:
    """Execute commands until their pipe is closed or one fails."""
    while command := os.read(commands, COMMAND.size):
        try:
            part.run(*COMMAND.unpack(command))
        except EnvironmentFailed as error:
            _fail(answers, error)
            return
        os.write(answers, DONE)


def end_with_parent(life: int) -> None:
    """Let the kernel end this process, whatever it does then, when the other end of the pipe `life` is closed."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # it was closed before
        os._exit(1)


def _read(file: int, length: int) -> bytes:
    """Return `length` bytes of a pipe, or fewer if it is closed before."""
    found = b""
    while len(found) < length and (part := os.read(file, length - len(found))):
        found += part
    return found


def _fail(answers: int, error: EnvironmentFailed) -> None:
    text = json.dumps({"environment": error.environment, "action": error.action, "reason": error.reason}).encode()
    os.write(answers, FAILED + struct.pack("<I", len(text)) + text)
