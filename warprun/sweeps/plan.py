"""The plan of a sweep: its jobs, their settings and folders. No torch.

A sweep folder has

plan.json             the jobs: overrides and run folder of each
lock                  held by the command that starts jobs
NUMBER_SETTINGS/      the run folder of a job
jobs/NUMBER/          the rest of a job: status.json, log.txt, traceback.txt of its last failure, and the lock of its process
slurm/                the script of a job array, and what its tasks print before a job begins
study.db              the study of `warprun tune`, see `warprun.sweeps.study`
best.yaml             the settings of its best trial

It lies in OUTPUT_ROOT/sweeps, or elsewhere; then OUTPUT_ROOT/sweeps/*.place is a file with its path.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from warprun.config import environment_copy
from warprun.config.registry import config_dir
from warprun.errors import UserError, one_line, printable, program, shown, typed
from warprun.files import make_folder, read_json, read_limited, remove_empty, to_disk, write_atomic
from warprun.run_folder import CONFIG, ENVIRONMENT, JOBS, NETWORKS, PLAN, folder_name, networks
from warprun.runs.rundir import Held, read_status
from warprun.runs.sealing import is_own_plan, plan_seal

FORMAT = 1
ADVICE = "read plan.json, then add trust=true"
MOST_BYTES = 1 << 28
PLACE, MOST_PATH = ".place", 4096
"""Ending of a file that holds the path of a sweep folder, and its most bytes."""
MOST_NAME = 80
"""Bytes of the name of a run folder."""


class Job(NamedTuple):
    """One run of a sweep."""

    number: int
    overrides: tuple[str, ...]
    run: Path
    """Run folder of the job."""

    @property
    def folder(self) -> Path:
        """Folder with its status, log and lock."""
        return self.run.parent / JOBS / f"{self.number:04}"

    @property
    def log(self) -> Path:
        """The file that its output goes to."""
        return self.folder / "log.txt"

    @property
    def traceback(self) -> Path:
        """The file with the traceback of its last failure."""
        return self.folder / "traceback.txt"

    @property
    def begins_anew(self) -> bool:
        """Whether its run has failed: what it has saved leads to the same failure. One that was stopped or killed continues.

        The state of the job does not tell: it is `failed`, too, if the process of the run was killed.
        """
        return read_status(self.run).get("state") == "failed"


@dataclass
class Plan:
    """The jobs of a sweep folder."""

    folder: Path
    working_folder: Path
    """Folder in which the command was called; relative paths in overrides begin there."""
    jobs: list[Job]
    search: dict[str, str] | None = None
    """Key -> value or range of every setting of a study, whose jobs `warprun tune` adds one by one; None: a sweep."""
    seal: str = ""
    """Seal of plan.json; empty before it is written, and if the user's key cannot be made."""
    config_dir: str | None = None
    """Folder of `--config-dir`, where its jobs look up config groups first."""

    def add(self, jobs: Sequence[Sequence[str]]) -> list[Job]:
        """Append jobs with these overrides; return them."""
        first = len(self.jobs)
        differing = _differing([*(job.overrides for job in self.jobs), *jobs])
        for number, overrides in enumerate(jobs, first):
            own = [override for override in overrides if override.partition("=")[0] in differing and self.search is None]
            name = folder_name("_".join([f"{number:04}", *_words(own)]))[:MOST_NAME].rstrip("._-")
            self.jobs.append(Job(number, tuple(overrides), self.folder / name))
        return self.jobs[first:]

    def write(self) -> None:
        """Write plan.json with its seal. Raises OSError."""
        try:
            self.seal = plan_seal(self._sealed())
        except (UserError, OSError, RuntimeError) as error:
            if not is_sweep(self.folder):
                print(f"the sweep folder has no seal, so continuing it later needs trust=true: {one_line(error)}")
        write_atomic(self.folder / PLAN, json.dumps({**self._content(), "seal": self.seal}, indent=1).encode() + b"\n")
        to_disk((self.folder / PLAN, self.folder))

    def require_own(self, trusted: bool) -> None:
        """Raise UserError if no command of this user wrote the plan, whose jobs can run any code, and the user does not trust it."""
        if not trusted and not is_own_plan(self._sealed(), self.seal):
            raise UserError(f"{printable(self.folder)} is not a sweep of yours (no valid seal), and its jobs can run any code: {ADVICE}")

    def require_config_dir(self) -> None:
        """Raise UserError if this command looks up config groups in another folder than the jobs of the plan."""
        if self.config_dir != config_dir():
            how = f"with --config-dir {typed(Path(self.config_dir))}" if self.config_dir else "without --config-dir"
            raise UserError(f"sweep_dir={self.folder} was begun {how}: continue it so, or choose another folder")

    def _content(self) -> dict[str, object]:
        jobs = [{"number": job.number, "overrides": list(job.overrides), "run": job.run.name} for job in self.jobs]
        given = {"config_dir": self.config_dir} if self.config_dir else {}
        return {"format": FORMAT, "search": self.search, "working_folder": str(self.working_folder), "jobs": jobs, **given}

    def _sealed(self) -> bytes:
        return json.dumps(self._content(), sort_keys=True).encode()

    def names(self) -> list[str]:
        """Return for each job the settings in which it differs from others."""
        jobs = [job.overrides for job in self.jobs]
        differing = _differing(jobs) if self.search is None else {key for job in jobs for key in self._searched(job)}
        return [" ".join(o for o in job.overrides if o.partition("=")[0] in differing) or "(all defaults)" for job in self.jobs]

    def _searched(self, overrides: Sequence[str]) -> list[str]:
        parts = [override.partition("=") for override in overrides]
        ranges = self.search or {}
        return [key for key, _, value in parts if ranges.get(key, value) != value]


def read(folder: Path) -> Plan:
    """Read the plan of a sweep folder. Raises UserError."""
    try:
        found = read_json(folder / PLAN, MOST_BYTES)
    except FileNotFoundError:
        raise UserError(f"{printable(folder)} is not a sweep folder: it has no {PLAN}") from None
    try:
        return _parse(folder, found)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"{printable(folder / PLAN)} is damaged, or of another version of warprun") from None


def _parse(folder: Path, found: Any) -> Plan:
    """Return the plan that a JSON text describes. Raises the errors of values of other types, and ValueError."""
    jobs = [Job(n, (*job["overrides"],), folder / job["run"]) for n, job in enumerate(found["jobs"])]
    search = None if found["search"] is None else dict(found["search"].items())
    configs = found.get("config_dir")
    places = [found["working_folder"], found.get("seal", ""), configs or ""]
    texts = [*places, *itertools.chain(*(job.overrides for job in jobs)), *(search or {}).values()]
    if found["format"] != FORMAT or any("\0" in text for text in texts):
        raise ValueError("another format")
    # The folder of a run that is repeated is removed first: it must not lie elsewhere, nor be the folder of something else.
    if not all(re.fullmatch(rf"{job.number:04}([^\d\0][^\0]*)?", job.run.name) and job.run.parent == folder for job in jobs):
        raise ValueError("another folder")
    return Plan(folder, Path(found["working_folder"]), jobs, search, found.get("seal", ""), configs)


def outdated(jobs: Sequence[Job]) -> dict[str, int]:
    """Return the user's files that have changed since runs of `jobs` began -> the number of the runs that keep their copy of it."""
    found: Counter[Path] = Counter()
    for job in jobs:
        with suppress(UserError, OSError):
            if job.begins_anew or not (job.run / CONFIG).exists():  # without config.yaml its set-up begins anew
                continue
            own = environment_copy.find(str(job.run / ENVIRONMENT))
            copies = [*([own.copy] if own else []), *networks(job.run / NETWORKS).values()]
            # A set, because the environment and networks may import one file.
            found.update({Path(copy.place, file).resolve() for copy in copies if copy.place for file in copy.changed(Path(copy.place))})
    return {typed(file): number for file, number in sorted(found.items())}


def is_sweep(folder: Path) -> bool:
    """Return whether a folder is that of a sweep."""
    return (folder / PLAN).is_file()


def new_folder(root: Path, name: str) -> Path:
    """Return the path of a new sweep folder below `root`/sweeps; it is not made."""
    return root / "sweeps" / f"{folder_name(name)}_{datetime.now():%Y%m%d-%H%M%S}_{secrets.token_hex(3)}"


def latest(root: Path) -> Path:
    """Return the sweep folder below `root`/sweeps, or named there, in which a command was called last. Raises UserError."""
    found = [plan.parent for plan in (root / "sweeps").glob(f"*/{PLAN}")]
    places = [Path(os.fsdecode(read_limited(file, MOST_PATH))) for file in (root / "sweeps").glob(f"*{PLACE}")]
    found += [folder for folder in places if is_sweep(folder)]
    if not found:
        raise UserError(f"no sweep in {root / 'sweeps'}")
    return max(found, key=lambda folder: (folder / PLAN).stat().st_mtime)


def planned(folder: Path, jobs: Sequence[Sequence[str]], trusted: bool = False) -> Plan:
    """Return the plan of a folder with `jobs`: a new one, or that of the folder, to which new jobs are added. Nothing is written.

    Raises UserError if the folder holds something else, or jobs that are not among `jobs`.
    """
    plan = _read_or_new(folder, None, trusted)
    if plan.search is not None:
        raise UserError(f"sweep_dir={folder} holds a study, which `warprun tune` continues; choose another folder")
    if not plan.jobs or jobs != [[]]:
        plan.require_config_dir()
        _extend(plan, jobs)
    return plan


def studied(folder: Path, search: dict[str, str], trusted: bool = False) -> Plan:
    """Return the plan of a study over `search`: a new one, or that of the folder. Nothing is written.

    Raises UserError if the folder holds something else, or the study of another search space.
    """
    plan = _read_or_new(folder, search, trusted)
    if plan.search is None:
        raise UserError(f"sweep_dir={folder} holds a sweep, which `warprun -m` continues; choose another folder")
    if plan.search != search:
        keys = {**plan.search, **search}
        key = next(key for key in keys if plan.search.get(key) != search.get(key))
        theirs, ours = (shown(given[key]) if key in given else "not given" for given in (plan.search, search))
        raise UserError(f"sweep_dir={folder} holds a study of another search space: {key} was {theirs}, and is now {ours}")
    plan.require_config_dir()
    return plan


def _read_or_new(folder: Path, search: dict[str, str] | None, trusted: bool) -> Plan:
    if not is_sweep(folder):
        if folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= {"lock", f"{PLAN}.tmp"}):
            raise UserError(f"sweep_dir={folder} exists, is not empty, and holds no sweep; choose another folder")
        return Plan(folder, Path.cwd(), [], search, config_dir=config_dir())
    found = read(folder)
    found.require_own(trusted)
    return found


def _extend(plan: Plan, jobs: Sequence[Sequence[str]]) -> None:
    """Add the jobs that a plan does not have. Raises UserError if it has others."""
    asked = {tuple(sorted(job)): job for job in jobs}
    known = {tuple(sorted(job.overrides)): job for job in plan.jobs}
    others = [job for key, job in known.items() if key not in asked]
    if others:
        theirs = shown(" ".join(others[0].overrides))
        raise UserError(
            f"sweep_dir={plan.folder} holds {len(others):,} jobs that this command does not have, such as {theirs}; choose another"
            f" folder, or continue it with `{program()} -m sweep_dir={typed(plan.folder)}`"
        )
    plan.add([job for key, job in asked.items() if key not in known])


def claimed(plan: Plan, root: Path) -> Held:
    """Make and lock the folder of a plan, write plan.json, let `latest(root)` find it. Raises UserError, and then leaves nothing new."""
    place, held = _place(root, plan.folder), None
    try:
        held = Held.new(plan.folder)
        plan.write()
        if plan.folder.absolute().parent != place.parent.absolute():
            held.made += make_folder(place.parent)
            write_atomic(place, os.fsencode(plan.folder.absolute()))
        return held
    except OSError as error:
        if held:
            discard(held, root)
            held.release()
        raise UserError(f"cannot make the sweep folder {plan.folder}: {error.strerror}") from None


def discard(held: Held, root: Path) -> None:
    """Remove what `claimed` has made for a sweep that does not begin; a folder that was there stays as it is."""
    if held.folder in held.made:
        shutil.rmtree(held.folder, ignore_errors=True)
        _place(root, held.folder).unlink(missing_ok=True)
    remove_empty(held.made)


def _place(root: Path, folder: Path) -> Path:
    """Return the file that holds the path of a sweep folder which does not lie in `root`/sweeps."""
    return root / "sweeps" / f"{hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]}{PLACE}"


def _differing(jobs: Sequence[Sequence[str]]) -> set[str]:
    """Return the keys that not all jobs set to the same value."""
    counts: dict[str, int] = {}
    for job in jobs:
        for override in job:
            counts[override] = counts.get(override, 0) + 1
    return {override.partition("=")[0] for override, count in counts.items() if count < len(jobs)}


def _words(overrides: Sequence[str]) -> list[str]:
    """Return the settings of a job as parts of a folder name: ppo, seed-0; a key by as many of its last parts as no other key shares."""
    keys = [override.partition("=")[0] for override in overrides]
    words = []
    for override in overrides:
        key, _, value = override.partition("=")
        ends = [".".join(key.split(".")[-n:]) for n in range(1, key.count(".") + 2)]
        end = next((end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1), key)
        value = value.strip("[](){}'\" ")
        words.append(value if key in ("env", "agent") else f"{end}-{value}")
    return words
