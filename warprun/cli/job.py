"""`warprun job`: train one job of a sweep. The launchers call it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from warprun.cli.loading import begin_to_load_torch
from warprun.cli.process import Outcome, attempt
from warprun.cli.settings import read_settings, whole_number
from warprun.cli.train import train_one
from warprun.config.compositions import Compositions
from warprun.config.registry import check_working_folder, configs_from
from warprun.errors import UserError, printable
from warprun.files import refuse_links, write_atomic
from warprun.run_folder import PLAN
from warprun.runs import rundir, signals
from warprun.sweeps import events, plan
from warprun.sweeps.plan import Job, Plan
from warprun.sweeps.table import state_of

COMPOSITIONS = Compositions()
"""Those of the jobs that this process has trained: a worker trains many."""


@dataclass
class _JobSettings:
    """The settings of `warprun job`."""

    threads: int = 0
    """CPU threads, if the job itself does not say; 0: all cores that it may use."""
    trust: bool = False
    """Train a job of a sweep that this user did not begin; it can run any code."""


def job(arguments: Sequence[str]) -> int:
    """Train one job of a sweep and return the exit code of its run. Raises UserError."""
    settings = _JobSettings()
    names = read_settings("job", settings, arguments)
    if len(names) != 2:
        raise UserError("job takes a sweep folder and the number of a job, such as `warprun job outputs/sweeps/SWEEP 3`")
    return train_job(names[0], whole_number("the job", names[1]), settings.threads, settings.trust)


def train_job(folder: str, number: int, threads: int = 0, trusted: bool = False) -> int:
    """Begin, continue or repeat a job, unless it is done; return the exit code. Its folder says how it ends.

    `trusted`: its code may run even if no command of this user planned it, or began its run. Raises UserError.
    """
    found = _planned(Path(folder).absolute())
    if not 0 <= number < len(found.jobs):
        raise UserError(f"{printable(folder)} has no job {number}: they are numbered from 0 to {len(found.jobs) - 1}")
    found.require_own(trusted)
    one = found.jobs[number]
    former = state_of(one)
    if former.is_done:
        print(f"job {number} has ended: {former.state}")
        return 0
    refuse_links(one.folder)
    for place in (one.folder.parent, one.run):
        if place.is_symlink():
            raise UserError(f"{printable(place)} is a link, and the command would write to it; remove it")
    status: dict[str, object] = {"started": rundir.now(), "attempts": former.attempts + 1, "overrides": list(one.overrides)}
    try:
        one.folder.mkdir(parents=True, exist_ok=True)
        held = rundir.Held(one.folder)
        try:
            rundir.write_status(one.folder, {"state": "running", **status})
            with signals.requests.last_words(lambda name: _write_end(one, status, Outcome(128, f"ended by {name}"))), _into_log(one):
                with configs_from(found.config_dir):
                    outcome = attempt(lambda: _train(found, one, threads, trusted))
                outcome.tell()
            _write_end(one, status, outcome)
        finally:
            held.release()
    except OSError as error:  # those of the run are in its outcome
        raise UserError(f"cannot write to {printable(one.folder)}: {error.strerror}") from None
    return outcome.code


def _planned(folder: Path) -> Plan:
    """Return the plan of a sweep folder, read once by a worker unless the file changes. Raises UserError."""
    with suppress(OSError):
        file = (folder / PLAN).stat()
        return _read(folder, file.st_mtime_ns, file.st_size)
    return plan.read(folder)


@lru_cache(maxsize=1)
def _read(folder: Path, changed_ns: int, size: int) -> Plan:
    return plan.read(folder)


def _train(found: Plan, one: Job, threads: int, trusted: bool) -> int:
    begin_to_load_torch()
    os.chdir(found.working_folder)
    check_working_folder()
    if one.begins_anew:
        shutil.rmtree(one.run)
    overrides = [*one.overrides, *events.added(found, one), f"run_dir={one.run}", "resume=auto", f"trust={str(trusted).lower()}"]
    if threads and COMPOSITIONS.compose(list(one.overrides)).concurrency.threads is None:
        overrides.append(f"concurrency.threads={threads}")
    return train_one(overrides, COMPOSITIONS.compose)


def _write_end(one: Job, status: dict[str, object], outcome: Outcome) -> None:
    """Write how a job has ended; its run says whether it is finished or solved."""
    state = "interrupted" if outcome.code >= 128 else "failed" if outcome.code else str(rundir.read_status(one.run).get("state"))
    end = {**status, "state": state, "ended": rundir.now(), "exit_code": outcome.code}
    try:
        if outcome.traceback and state == "failed":
            write_atomic(one.traceback, outcome.traceback.encode())
        rundir.write_status(one.folder, end | ({"error": outcome.message} if outcome.message else {}))
    except (OSError, ValueError) as error:
        print(f"cannot write the end of job {one.number}: {error}", file=sys.stderr)


@contextmanager
def _into_log(one: Job) -> Iterator[None]:
    """Let what this process and its children print go to the end of the job's log; of jobs that train together what Python prints."""
    sys.stdout.flush()
    sys.stderr.flush()
    with (
        one.log.open("a", buffering=1, errors="backslashreplace") as log,
        redirect_stdout(log),
        redirect_stderr(log),
        nullcontext() if _trains_others() else _process_into(log.fileno()),
    ):
        print(f"{rundir.now()} {' '.join(one.overrides)}")
        yield


def _trains_others() -> bool:
    """Return whether this process trains other jobs at the same time."""
    members = sys.modules.get("warprun.simulation.members")
    return members is not None and members.inside()


@contextmanager
def _process_into(file: int) -> Iterator[None]:
    """Let the standard streams of this process and of its children go to a file in this context."""
    before = [os.dup(1), os.dup(2)]
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        for number, former in enumerate(before, 1):
            os.dup2(former, number)
            os.close(former)
