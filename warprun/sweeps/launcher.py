"""The interface of launchers, which carry the jobs of a sweep, and what a command has handed to one. No torch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from warprun.errors import UserError, counted, one_line, printable, program, typed
from warprun.files import read_json, write_atomic
from warprun.runs import rundir
from warprun.sweeps.launch import LAUNCHERS, LauncherConfig
from warprun.sweeps.plan import Job, Plan

CLASSES = {"slurm": "Slurm", "submitit": "Submitit", "psij": "Psij", "ray": "Ray"}
"""Name of a launcher -> its class, in the module of that name. `local`, which trains in processes of the command, is made by it."""
SUBMITTED = "submitted.json"
"""The jobs that were submitted last: file in the folder NAME of the sweep."""
RETRY_S = 1.0
"""Seconds until a queue that is full of the jobs of others is asked again."""


class Launcher(ABC):
    """Carries jobs. It knows each by an id, a text of its own, and keeps nothing else of them."""

    outlasts: bool = True
    """Whether its jobs go on when the command ends; then its settings are `config`."""
    config: LauncherConfig

    @property
    def size(self) -> int | None:
        """Jobs that it has at a time, while the command waits for them; None: it takes all at once, and the command returns."""
        return None

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> list[str]:
        """Take jobs, and return an id for each; fewer if there is no room for all. Raises UserError, and then has taken none."""

    @abstractmethod
    def alive(self, ids: Sequence[str], within_s: float = 0.0) -> set[str]:
        """Return which are queued or running, when one of them has ended or after `within_s` seconds. Raises UserError."""

    @abstractmethod
    def cancel(self, ids: Sequence[str], number: int = signal.SIGTERM) -> None:
        """End jobs, as by the signal `number` if that can be sent; those that save no checkpoint then go on from their last one."""

    def describe(self) -> str:
        """Return one line that says where jobs run."""
        return f"at most {counted(self.size or 0, 'job')} at a time"

    def told(self, ids: Sequence[str], folder: Path) -> tuple[str, str]:
        """Return what these jobs of a sweep are, and the command that cancels them."""
        return counted(len(ids), "job"), f"{program()} cancel {typed(folder)}"

    def close(self) -> None:  # noqa: B027
        """Release what it holds; none of its jobs is alive, or all go on without it."""


def made(config: LauncherConfig, plan: Plan, trust: bool) -> Launcher:
    """Return the launcher of a plan; `trust`: its jobs can run code that no command of this user planned. Raises UserError."""
    try:
        launcher: Launcher = getattr(import_module(f"warprun.sweeps.{config.name}"), CLASSES[config.name])(config, plan, trust)
    except ImportError as error:
        need = f"pip install 'warprun[{config.name}]'"
        raise UserError(f"launcher={config.name} needs a package that is not here ({one_line(error)}): {need}") from None
    launcher.config = config
    return launcher


def command(plan: Plan, number: int, threads: int, trust: bool) -> list[str]:
    """Return the command that trains a job, wherever it is called; a plan that could not be sealed is one of this user."""
    trusted = ["trust=true"] if trust or not plan.seal else []
    return [sys.executable, "-m", "warprun", "job", str(plan.folder.absolute()), str(number), f"threads={threads}", *trusted]


def submitted(folder: Path) -> tuple[LauncherConfig, dict[int, str]] | None:
    """Return the settings of the launcher that jobs of a sweep were submitted to last, and their ids; None if there is none.

    Raises UserError for a file that is no JSON.
    """
    files = sorted(folder.glob(f"*/{SUBMITTED}"), key=lambda file: file.stat().st_mtime)
    with suppress(IndexError, AttributeError, KeyError, TypeError, ValueError):
        found = dict(read_json(files[-1]))  # type: ignore[call-overload]
        schema = LAUNCHERS[files[-1].parent.name]
        ids = found["jobs"] if "jobs" in found else {"0": str(found["job"])}  # `job`: one array, by an older version
        return schema(**found.get("launcher", {})), {int(number): str(id) for number, id in ids.items()}
    return None


def note(launcher: Launcher, folder: Path, ids: Mapping[int, str]) -> None:
    """Write which jobs a launcher has."""
    file = folder / launcher.config.name / SUBMITTED
    file.parent.mkdir(exist_ok=True)
    write_atomic(file, json.dumps({"launcher": asdict(launcher.config), "jobs": ids}).encode() + b"\n")


def require_ended(plan: Plan, trust: bool) -> None:
    """Raise UserError if jobs that an earlier command has submitted are still queued or running."""
    former = submitted(plan.folder)
    if former and former[1]:
        launcher = made(former[0], plan, trust)
        alive = launcher.alive(list(former[1].values()))
        launcher.close()
        if alive:
            what, how = launcher.told(sorted(alive), plan.folder)
            what = what.partition(":")[0]
            are, their = ("are", "their") if what.endswith("s") else ("is", "its")
            raise UserError(f"{what} of this sweep {are} still queued or running; wait for {their} end, or `{how}`")


def processes(folder: Path, ids: Sequence[str]) -> set[str]:
    """Return which processes of this machine, by their numbers, run a command with the path of a sweep folder in it."""
    return {id for id in ids if os.fsencode(folder.absolute()) in _command_line(id)}


def _command_line(process: str) -> bytes:
    """Return what a process was called with; empty if there is none. Containers often have no `ps`, and macOS has no /proc."""
    if sys.platform == "linux":
        with suppress(OSError):
            return Path("/proc", process, "cmdline").read_bytes()
        return b""
    return subprocess.run(["ps", "-ww", "-o", "args=", "-p", process], capture_output=True).stdout


def ask(job: Job, number: int) -> bool:
    """Send a signal to the process of a job, and return True, if it runs on this machine."""
    status = rundir.read_status(job.folder)
    pid = status.get("pid")
    if status.get("state") != "running" or status.get("host") != socket.gethostname() or type(pid) is not int:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    return True


def write_end(job: Job, why: str, **more: object) -> None:
    """Write the end of a job whose process did not write it, and is gone."""
    status = rundir.read_status(job.folder)
    if status.get("state") not in rundir.STATES:  # one that is running is held by a process of somebody else
        with suppress(OSError):
            job.folder.mkdir(parents=True, exist_ok=True)
            rundir.write_status(job.folder, {**status, "state": "failed", "error": why, **more})


class Running:
    """The jobs that a command has started with a launcher and waits for."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self._launcher, self._folder = launcher, folder
        self._waiting: deque[Job] = deque()
        self._taken: dict[str, Job] = {}
        self._begun = self._stopped = False

    @property
    def jobs(self) -> list[Job]:
        """The jobs that have been started and have not ended."""
        return [*self._taken.values(), *self._waiting]

    @property
    def is_full(self) -> bool:
        """Whether no other job can start now."""
        return len(self.jobs) >= (self._launcher.size or 1)

    def start(self, job: Job) -> None:
        """Start a job, or let it wait if a queue is full. Raises UserError if the first one cannot start."""
        self._waiting.append(job)
        self._hand_over()

    def _hand_over(self) -> None:
        while self._waiting:
            try:
                ids = self._launcher.submit([self._waiting[0]])
            except UserError:
                if not self._begun:
                    raise
                return  # a queue is full until a job has ended
            self._begun = True
            job = self._waiting.popleft()
            self._taken |= dict.fromkeys(ids, job)
            self._note()

    def ended(self, within_s: float) -> list[Job]:
        """Return the jobs that have ended since the last call, at once or after `within_s` seconds."""
        alive = self._launcher.alive(list(self._taken), within_s if self._taken else RETRY_S)
        gone = {id: job for id, job in self._taken.items() if id not in alive}
        for id, job in gone.items():
            del self._taken[id]
            if self._launcher.outlasts and not self._stopped:
                where = printable(self._folder / self._launcher.config.name)
                write_end(job, f"its process ended without a word; see {where}")
        if gone or not self._taken:
            self._note()
            self._hand_over()
        return list(gone.values())

    def stop(self, number: int, jobs: Sequence[Job] | None = None) -> None:
        """Let running jobs, or only some, save a checkpoint and end, as by the signal `number`."""
        self._stopped = self._stopped or jobs is None
        self._waiting = deque(job for job in self._waiting if jobs is not None and job not in jobs)
        wanted = {id: job for id, job in self._taken.items() if jobs is None or job in jobs}
        end(self._launcher, wanted, number)

    def _note(self) -> None:
        if self._launcher.outlasts:
            note(self._launcher, self._folder, {job.number: id for id, job in self._taken.items()})


def end(launcher: Launcher, jobs: Mapping[str, Job], number: int) -> None:
    """End jobs, id -> job: those on this machine by a signal, so that they save a checkpoint, others as their launcher can."""
    others = [id for id, job in jobs.items() if not (launcher.outlasts and ask(job, number))]
    if others:
        launcher.cancel(others, number)
