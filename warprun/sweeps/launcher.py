"""The interface of launchers, which carry the jobs of a sweep, and what a command has handed to one. No torch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

from warprun.errors import UserError, counted, one_line, printable, program, typed
from warprun.files import read_json, write_atomic
from warprun.runs import rundir
from warprun.sweeps.launch import LAUNCHERS, LauncherConfig
from warprun.sweeps.plan import Job, Plan

SUBMITTED = "submitted.json"
"""The jobs that were submitted last: file in the folder NAME of the sweep."""
RETRY_S = 1.0
"""Seconds until a queue that is full of the jobs of others is asked again."""


class Launcher(ABC):
    """Carries jobs. It knows each by an id, a text of its own, and keeps nothing else of them."""

    outlasts = True
    """Whether its jobs go on when the command ends; then its settings are `config`."""
    size: int | None
    """Jobs that it has at a time, while the command waits for them; None: it takes all at once, and the command returns."""

    def __init__(self, config: LauncherConfig, plan: Plan, trust: bool) -> None:
        """Carry jobs of a plan; `trust`: they can run code that no command of this user planned. May raise UserError."""
        self.config, self.plan, self.trust, self.size = config, plan, trust, config.at_a_time

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> list[str]:
        """Take jobs, and return an id for each; fewer if there is no room for all. Raises UserError, and then has taken none."""

    @abstractmethod
    def alive(self, ids: Sequence[str]) -> set[str]:
        """Return which of some jobs are queued or running. Raises UserError."""

    @abstractmethod
    def cancel(self, ids: Sequence[str], number: int = signal.SIGTERM) -> None:
        """End jobs, as by the signal `number` if that can be sent; those that save no checkpoint then go on from their last one."""

    def wait(self, within_s: float) -> None:
        """Wait until a job may have ended, about `within_s` seconds."""
        time.sleep(within_s)

    def describe(self) -> str:
        """Return one line that says where jobs run."""
        return f"at most {counted(self.size or 0, 'job')} at a time"

    def close(self) -> None:  # noqa: B027
        """Release what it holds; none of its jobs is alive, or all go on without it."""

    def command(self, job: Job, threads: int) -> list[str]:
        """Return the command that trains a job, wherever it is called; a plan that could not be sealed is one of this user."""
        words = [sys.executable, "-m", "warprun", "job", str(self.plan.folder.absolute()), str(job.number), f"threads={threads}"]
        return [*words, "trust=true"] if self.trust or not self.plan.seal else words


def made(config: LauncherConfig, plan: Plan, trust: bool) -> Launcher:
    """Return the launcher of a plan, the class in the module of its name; `local` is made by the command. Raises UserError."""
    try:
        launcher: Launcher = getattr(import_module(f"warprun.sweeps.{config.name}"), config.name.capitalize())(config, plan, trust)
    except ImportError as error:
        need = f"pip install 'warprun[{config.name}]'"
        raise UserError(f"launcher={config.name} needs a package that is not here ({one_line(error)}): {need}") from None
    return launcher


def submitted(folder: Path) -> tuple[LauncherConfig, dict[int, str]] | None:
    """Return the settings of the launcher that jobs of a sweep were submitted to last, and their ids; None if there is none."""
    files = sorted(folder.glob(f"*/{SUBMITTED}"), key=lambda file: file.stat().st_mtime)
    with suppress(IndexError, AttributeError, KeyError, TypeError, ValueError):
        found = dict(read_json(files[-1]))  # type: ignore[call-overload]
        ids = found["jobs"] if "jobs" in found else {"0": str(found["job"])}  # `job`: one array, by an older version
        config = replace(LAUNCHERS[files[-1].parent.name], **found.get("launcher", {}))
        return config, {int(number): str(id) for number, id in ids.items()}
    return None


def note(launcher: Launcher, ids: Mapping[int, str]) -> None:
    """Write which jobs a launcher has."""
    file = launcher.plan.folder / launcher.config.name / SUBMITTED
    file.parent.mkdir(exist_ok=True)
    write_atomic(file, json.dumps({"launcher": asdict(launcher.config), "jobs": ids}).encode() + b"\n")


def require_ended(plan: Plan, trust: bool) -> None:
    """Raise UserError if jobs that an earlier command has submitted are still queued or running."""
    former = submitted(plan.folder)
    if former and former[1]:
        launcher = made(former[0], plan, trust)
        alive = len(launcher.alive(list(former[1].values())))
        launcher.close()
        if alive:
            are = f"{alive:,} jobs of this sweep are" if alive > 1 else "1 job of this sweep is"
            raise UserError(f"{are} still queued or running; wait for the end, or `{program()} cancel {typed(plan.folder)}`")


def processes(folder: Path, ids: Sequence[str]) -> set[str]:
    """Return which processes of this machine, by their numbers, run a command with the path of a sweep folder in it."""
    return {id for id in ids if os.fsencode(folder.absolute()) in _command_line(id)}


def _command_line(process: str) -> bytes:
    """Return what a process was called with; empty if there is none. Containers often have no `ps`, and macOS has no /proc."""
    if sys.platform != "linux":
        return subprocess.run(["ps", "-ww", "-o", "args=", "-p", process], capture_output=True).stdout
    with suppress(OSError):
        return Path("/proc", process, "cmdline").read_bytes()
    return b""


def interrupt(folder: Path, ids: Sequence[str]) -> None:
    """Send SIGINT to processes of this machine that run a command with the path of a sweep folder in it."""
    for id in processes(folder, ids):
        with suppress(ProcessLookupError):
            os.kill(int(id), signal.SIGINT)


def write_end(job: Job, why: str, **more: object) -> None:
    """Write the end of a job whose process did not write it, and is gone."""
    status = rundir.read_status(job.folder)
    if status.get("state") not in rundir.STATES:  # one that is running is held by a process of somebody else
        with suppress(OSError):
            job.folder.mkdir(parents=True, exist_ok=True)
            rundir.write_status(job.folder, {**status, "state": "failed", "error": why, **more})


class Running:
    """The jobs that a command has started with a launcher and waits for."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
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
            if not ids:
                return  # nor is there room until a job has ended
            self._begun = True
            self._taken |= dict.fromkeys(ids, self._waiting.popleft())
            self._note()

    def ended(self, within_s: float) -> list[Job]:
        """Return the jobs that have ended since the last call, at once or after `within_s` seconds."""
        self._launcher.wait(within_s if self._taken else RETRY_S)
        alive = self._launcher.alive(list(self._taken)) if self._taken else set()
        gone = {id: job for id, job in self._taken.items() if id not in alive}
        for id, job in gone.items():
            del self._taken[id]
            if self._launcher.outlasts and not self._stopped:
                where = printable(self._launcher.plan.folder / self._launcher.config.name)
                write_end(job, f"its process ended without a word; see {where}")
        if gone or not self._taken:
            self._note()
            self._hand_over()
        return list(gone.values())

    def stop(self, number: int, jobs: Sequence[Job] | None = None) -> None:
        """Let running jobs, or only some, save a checkpoint and end, as by the signal `number`."""
        self._stopped = self._stopped or jobs is None
        self._waiting = deque(job for job in self._waiting if jobs is not None and job not in jobs)
        end(self._launcher, {id: job for id, job in self._taken.items() if jobs is None or job in jobs}, number)

    def _note(self) -> None:
        if self._launcher.outlasts:
            note(self._launcher, {job.number: id for id, job in self._taken.items()})


def end(launcher: Launcher, jobs: Mapping[str, Job], number: int) -> None:
    """End jobs, id -> job: those on this machine by a signal, so that they save a checkpoint, others as their launcher can."""
    others = [id for id, job in jobs.items() if not (launcher.outlasts and _ask(job, number))]
    if others:
        launcher.cancel(others, number)


def _ask(job: Job, number: int) -> bool:
    """Send a signal to the process of a job, and return True, if it runs on this machine."""
    status = rundir.read_status(job.folder)
    pid = status.get("pid")
    if status.get("state") != "running" or status.get("host") != socket.gethostname() or type(pid) is not int:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    return True
