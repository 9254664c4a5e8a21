"""What a study is: cases that are trained over seeds, the cells of its table, and what counts as solved."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import table

from warprun.report.statistics import interval, mean

PEER = "name=stable_baselines3"
"""Marks, among the settings of a run, one that Stable-Baselines3 takes."""
Run = dict[str, Any]
"""Numbers of a run: bar, state, env_steps, wall_s, cpu_s, command_s, and those of evaluations, such as `last/return`; or `failed`."""
Runs = dict[str, list[Run]]
"""By case."""
Column = Callable[["Study", str, list[Run]], str]
"""Study, case and its runs -> a cell."""


class Case(NamedTuple):
    """A training that is repeated over seeds."""

    overrides: str
    bar: float | None = None
    """The return to reach; None: `env.solved_at`."""


class Picture(NamedTuple):
    """A figure of learning curves: all runs, and their medians over seeds."""

    file: str
    """In docs/figures."""
    metric: str
    """One of the curves of the study."""
    lines: dict[str, str]
    """Case -> its label; five at most."""
    axis: str
    """What the metric is."""
    threshold: float
    """What the metric is to reach: a dashed line."""
    until: int
    """Environment steps that are shown, those in which the lines differ."""


def cases_of(overrides: dict[str, str], bar: float | None = None, more: str = "") -> dict[str, Case]:
    """Return a case for each name, with its overrides and `more`."""
    return {case: Case(given + more, bar) for case, given in overrides.items()}


class Study(NamedTuple):
    """Trainings whose results are one table."""

    place: tuple[Path, str] | None
    """Page and mark of the table; None: it is only printed."""
    cases: dict[str, Case]
    columns: dict[str, Column]
    """By title."""
    evaluations: tuple[tuple[str, int, bool, int], ...]
    """(checkpoint `last` or `best`, episodes, whether actions are the most probable ones, seed)."""
    is_solved: Callable[[str, Case, Run], bool]
    seeds: int = 5
    write_table: Callable[[Study, Runs], str] | None = None
    """For a table that has not a line for each case."""
    curves: tuple[str, ...] = ()
    """Metrics of which the course during training is kept."""
    measure: str = "one_run:trained"
    """What measures a run in a process of scripts/one_run.py: MODULE:FUNCTION, `one_run.Task` -> numbers."""
    pictures: tuple[Picture, ...] = ()

    def solved(self, case: str, run: Run) -> bool:
        """Return whether a run is solved; one that failed is not."""
        return "failed" not in run and self.is_solved(case, self.cases[case], run)

    def table(self, runs: Runs) -> str:
        """Return the table of the cases that have runs, in Markdown."""
        if self.write_table:
            return self.write_table(self, runs)
        rows = [[cell(self, case, runs[case]) for cell in self.columns.values()] for case in self.cases if case in runs]
        return table(list(self.columns), rows)


def runs_of(study: Study, kept: dict[str, dict[str, Run]]) -> Runs:
    """Return the kept runs of each case of a study that has some with its settings."""
    found = {}
    for case, given in study.cases.items():
        ordered = sorted(kept.get(case, {}).items(), key=lambda item: int(item[0]))
        same = [run for seed, run in ordered if run["overrides"] == f"{given.overrides} seed={seed}"]
        found |= {case: same} if same else {}
    return found


# Cells ----------------------------------------------------------------------------------------------------------------


def name(study: Study, case: str, runs: list[Run]) -> str:
    """Return the case."""
    return case


def code(study: Study, case: str, runs: list[Run]) -> str:
    """Return the case as code."""
    return f"`{case}`"


def bar(study: Study, case: str, runs: list[Run]) -> str:
    """Return the return to reach."""
    known = [found for found in (study.cases[case].bar, *(run.get("bar") for run in ended(runs))) if found is not None]
    return f"{known[0]:g}" if known else ""


def solved(study: Study, case: str, runs: list[Run]) -> str:
    """Return how many runs are solved, of how many."""
    return f"{sum(study.solved(case, run) for run in runs)}/{len(runs)}"


def number(key: str, over: Callable[[list[Any]], float], form: str) -> Column:
    """Return a column with one number of each run that did not fail, over these runs, in a format."""
    return lambda study, case, runs: format(over([run[key] for run in ended(runs)]), form) if ended(runs) else ""


def ranged(key: str, form: str) -> Column:
    """Return a column with the median of a number over runs, the least and the largest; nothing if no run has it."""

    def cell(study: Study, case: str, runs: list[Run]) -> str:
        found = [run[key] for run in ended(runs) if key in run]
        return f"{statistics.median(found):{form}} [{min(found):{form}}, {max(found):{form}}]" if found else "–"

    return cell


def seeds(study: Study, case: str, runs: list[Run]) -> str:
    """Return the number of runs."""
    return str(len(runs))


def ranked(place: Callable[[int], int]) -> Column:
    """Return a column with the return, and its standard error, of the run at a place (number of runs -> index) in ascending order."""

    def cell(study: Study, case: str, runs: list[Run]) -> str:
        ordered = sorted(ended(runs), key=lambda run: run["last/return"])
        return _with_error(ordered[place(len(ordered))]) if ordered else ""

    return cell


def every_seed(study: Study, case: str, runs: list[Run]) -> str:
    """Return the returns of all seeds with their standard errors."""
    return ", ".join(map(_with_error, ended(runs)))


def mean_of_seeds(study: Study, case: str, runs: list[Run]) -> str:
    """Return the mean of the returns over seeds with its 95 % interval, by the bootstrap of `warprun report`."""
    found = interval(np.array([run["last/return"] for run in ended(runs)]), mean)
    return f"{found.value:.1f} [{found.low:.1f}, {found.high:.1f}]"


def ended(runs: list[Run]) -> list[Run]:
    """Return the runs that did not fail."""
    return [run for run in runs if "failed" not in run]


def _with_error(run: Run) -> str:
    return f"{run['last/return']:.1f} ± {run['last/return_stderr']:.1f}"


# What is solved -------------------------------------------------------------------------------------------------------


def at_the_bar(line: str) -> Callable[[str, Case, Run], bool]:
    """Return whether the policy of a checkpoint reaches the bar."""
    return lambda case, settings, run: run[f"{line}/return"] >= (run["bar"] if settings.bar is None else settings.bar)


def as_trained(case: str, settings: Case, run: Run) -> bool:
    """Return whether the run itself says that it is solved."""
    return bool(run["state"] == "solved")
