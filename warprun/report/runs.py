"""Find the runs below some folders and read their records; name each run that cannot be used, with the reason.

No torch.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from warprun.errors import UserError, printable
from warprun.report.statistics import Array
from warprun.run_folder import CONFIG, JOBS, LOCK, PLAN, VERSIONS, digests
from warprun.runs import rundir
from warprun.runs.records.jsonl import JsonLines, read_rows

MAX_DEPTH = 6
"""Folders inside each other that are searched for runs."""


class Curve(NamedTuple):
    """A return over the course of a run; arrays [points] without NaN."""

    env_steps: Array
    wall_s: Array
    """Seconds of training: without compilation and without loading what is compiled."""
    value: Array


@dataclass(frozen=True)
class Run:
    """The records of a run."""

    folder: Path
    settings: Mapping[str, object]
    """Config of the run, by dotted key."""
    state: str
    evaluations: Curve
    training: Curve
    group: str
    """Of several groups the one whose returns these are; empty with one group."""
    throughput: float
    """Environment steps per second: the median over the records after the first, which contains compilation. NaN without such."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """The last value of each metric that was asked for and that the run has."""
    sources: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """What the user wrote, as `run_folder.digests` returns it."""

    def curve(self, returns: str) -> Curve:
        """Return the curve of a return: eval or train."""
        return self.evaluations if returns == "eval" else self.training

    def first_at(self, returns: str, threshold: float) -> tuple[float, float]:
        """Return the env_steps and the seconds of training of the first return that reaches `threshold`; infinity if none does.

        The seconds are NaN if all records contain compilation.
        """
        curve = self.curve(returns)
        reached = np.flatnonzero(curve.value >= threshold)
        if not reached.size:
            return np.inf, np.inf
        return float(curve.env_steps[reached[0]]), float(curve.wall_s[reached[0]]) if np.isfinite(self.throughput) else np.nan

    @property
    def env(self) -> str:
        """The name of the environment; of one of Gymnasium its id."""
        return str(self.settings.get("env.id") or self.settings.get("env.name"))


class LeftOut(NamedTuple):
    """A folder that the report does not use."""

    folder: Path
    why: str


def collect(places: Sequence[Path], unfinished: bool, measures: Sequence[str] = ()) -> tuple[list[Run], list[LeftOut]]:
    """Return the runs in and below `places`, with the last values of some metrics, and the folders of runs that are left out.

    With `unfinished`, runs that were interrupted, failed or still train are used if they have records. Raises UserError for a place that
    does not exist.
    """
    found: dict[Path, None] = {}
    for place in places:
        if not place.exists():
            raise UserError(f"{printable(place)} does not exist")
        found |= dict.fromkeys(run_folders(place))
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    for folder in found:
        try:
            runs.append(_read(folder, unfinished, measures))
        except UserError as error:
            left_out.append(LeftOut(folder, str(error)))
        except OSError as error:
            left_out.append(LeftOut(folder, f"cannot read {printable(error.filename or JsonLines.name)}: {error.strerror}"))
    return runs, left_out


def run_folders(place: Path) -> Iterator[Path]:
    """Yield the run folders in and below a folder, also those of runs that did not get beyond their set-up, then those that cannot be
    read."""
    unreadable: list[Path] = []
    for folder, inner, files in os.walk(place, onerror=lambda error: unreadable.append(Path(error.filename))):
        here = Path(folder)
        if PLAN in files and CONFIG not in files:  # a sweep: it is locked as a run is, and JOBS has the locks of its processes
            inner[:] = [name for name in inner if name != JOBS]
        elif {CONFIG, LOCK, VERSIONS} & set(files):
            inner.clear()
            yield here
        elif len(here.relative_to(place).parts) >= MAX_DEPTH:
            inner.clear()
        inner.sort()
    yield from unreadable


def _read(folder: Path, unfinished: bool, measures: Sequence[str]) -> Run:
    """Return a run. Raises UserError with the reason if it cannot be used, and OSError."""
    state = str(rundir.read_status(folder).get("state", "without a status.json that can be read"))
    if not (folder / CONFIG).is_file():
        raise UserError("its set-up did not end: it has no config.yaml")
    settings = rundir.read_settings(folder)
    if state not in rundir.ENDED and not unfinished:
        raise UserError(f"{state}; unfinished=true includes it if it has records")
    if not (folder / JsonLines.name).is_file():
        raise UserError(f"{state}, without {JsonLines.name}")
    rows = read_rows(folder / JsonLines.name, lambda tag: _is_read(tag) or tag in measures)
    name = _name_of_return(settings, rows)
    if name is None:
        raise UserError(f"{state}, without a record of a return")
    if any(after["env_steps"] < before["env_steps"] for before, after in pairwise(rows)):
        raise UserError(f"{JsonLines.name} is damaged: its rows are not in the order of env_steps")
    speeds = [row["perf/env_steps_per_s"] for row in rows[1:] if math.isfinite(row.get("perf/env_steps_per_s", math.nan))]
    throughput = statistics.median(speeds) if speeds else math.nan
    began_s = _began_s(rows[0], throughput)
    last = {tag: found[-1] for tag in measures if (found := [row[tag] for row in rows if math.isfinite(row.get(tag, math.nan))])}
    rows = [row | {"wall_s": max(0.0, row["wall_s"] - began_s)} for row in rows]
    curves = _curve(rows, f"eval/{name}"), _curve(rows, f"train/{name}")
    return Run(folder, settings, state, *curves, name.rpartition("/")[0], throughput, last, digests(folder))


def _is_read(tag: str) -> bool:
    return tag in ("env_steps", "wall_s", "perf/env_steps_per_s") or (tag.startswith(("train/", "eval/")) and tag.endswith("return"))


def _began_s(first: Mapping[str, float], throughput: float) -> float:
    """Return when training began: the time of the first record, less that of its steps with the throughput of the run.

    The first iteration compiles kernels or loads them, which takes from one second to half a minute for the same run.
    """
    return first["wall_s"] - (first["env_steps"] / throughput if math.isfinite(throughput) and throughput > 0 else 0.0)


def _name_of_return(settings: Mapping[str, object], rows: Sequence[Mapping[str, float]]) -> str | None:
    """Return the name, below `train/` and `eval/`, of the return that decides whether the run is solved; None if there is no record."""
    tags = dict.fromkeys(tag.partition("/")[2] for row in rows for tag in row if tag.startswith(("train/", "eval/")))
    if "return" in tags:
        return "return"
    group = settings.get("eval.group")
    named = [tag for tag in tags if tag.endswith("/return") and group in (None, tag.partition("/")[0])]
    return named[0] if named else None  # the groups are recorded in the order of the environment


def _curve(rows: Sequence[Mapping[str, float]], tag: str) -> Curve:
    points = [(row["env_steps"], row["wall_s"], row[tag]) for row in rows if math.isfinite(row.get(tag, math.nan))]
    steps, wall, value = np.array(points, dtype=np.float64).reshape(-1, 3).T
    return Curve(steps, wall, value)
