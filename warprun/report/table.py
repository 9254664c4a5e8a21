"""The table of a comparison: statistics over seeds with the digits that their intervals support, as text, Markdown and
CSV.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from warprun.errors import UserError, counted, printable
from warprun.files import write_atomic
from warprun.report.compare import Comparison, Setting, text
from warprun.report.statistics import Array, Interval, Statistic, interval, iqm, mean, median
from warprun.runs.records.terminal import prefix

DIGITS = 4
"""Digits of a number whose interval has no width beyond rounding errors."""
STATISTICS: dict[str, Statistic] = {"median": median, "mean": mean, "IQM": iqm}
"""Of the final return; COLUMNS has their names, too."""


@dataclass(frozen=True)
class Reached:
    """Number of the runs of a setting that reach a return, and the steps and time that they need."""

    threshold: float
    runs: int
    """Number of runs that reach it."""
    env_steps: Interval
    """Median over all runs; infinity if half of them or more do not reach it."""
    seconds: Interval
    """The same in seconds of training, without compilation."""


@dataclass(frozen=True)
class Line:
    """The statistics of one setting."""

    setting: Setting
    final: dict[str, Interval]
    """Name in STATISTICS -> final return."""
    best: Interval
    """Median of the best returns."""
    throughput: Interval
    """Median of environment steps per second; NaN without records of it."""
    reached: Reached | None
    """How the runs reach the threshold; None without one."""


def lines(comparison: Comparison) -> list[Line]:
    """Return the statistics of every setting."""
    return [_line(setting, comparison.threshold_of(setting)) for setting in comparison.settings]


def _line(setting: Setting, threshold: float | None) -> Line:
    final, speeds = setting.final(), setting.throughput()
    return Line(
        setting,
        {name: interval(final, statistic) for name, statistic in STATISTICS.items()},
        interval(setting.best(), median),
        _median(speeds),
        None if threshold is None else _reached(setting, threshold),
    )


def _median(values: Array) -> Interval:
    return interval(values, median) if values.size else Interval(math.nan, math.nan, math.nan)


def _reached(setting: Setting, threshold: float) -> Reached:
    steps, wall = setting.reached(threshold)
    return Reached(threshold, int(np.isfinite(steps).sum()), interval(steps, median), interval(wall, median))


def unit_of_time(seconds: Sequence[float]) -> tuple[str, float]:
    """Return the unit in which times up to the largest finite one are read best, and its seconds."""
    longest = max((value for value in seconds if math.isfinite(value)), default=0.0)
    return ("s", 1.0) if longest < 180 else ("min", 60.0) if longest < 3 * 3600 else ("h", 3600.0)


class Column(NamedTuple):
    """A column of the table."""

    heading: str
    cells: list[str]


def columns(comparison: Comparison, found: Sequence[Line]) -> dict[str, Column]:
    """Return the columns that were chosen, by name: of COLUMNS all that there are, or those of `comparison.columns`."""
    name = f"final {comparison.settings[0].returns} return"
    every = {"runs": Column("runs", [str(len(line.setting.runs)) for line in found])}
    for each in STATISTICS:
        every[each.lower()] = Column(f"{name}, {each}", [cell(line.final[each]) for line in found])
    every["best"] = Column("best return, median", [cell(line.best) for line in found])
    every |= _columns_of_reached(found)
    every["throughput"] = Column("env_steps/s, median", [_count(line.throughput) for line in found])
    for metric in comparison.metrics:
        every[metric] = Column(f"{metric}, median", [cell(_median(line.setting.measured(metric))) for line in found])
    return {name: every[name] for name in comparison.columns or every if name in every}


def headings(comparison: Comparison, found: Sequence[Line]) -> list[str]:
    """Return the headings of the table."""
    return ["env", *comparison.by, *(column.heading for column in columns(comparison, found).values())]


def rows(comparison: Comparison, found: Sequence[Line]) -> list[list[str]]:
    """Return the cells of the table as text: `value [low, high]`."""
    shown = [column.cells for column in columns(comparison, found).values()]
    names = [[printable(line.setting.env), *(printable(text(value)) for value in line.setting.values)] for line in found]
    return [[*named, *(cells[place] for cells in shown)] for place, named in enumerate(names)]


def terminal(comparison: Comparison, found: Sequence[Line]) -> Table:
    """Return the table for a terminal, with intervals below the values."""
    table = Table(
        title=counted(sum(len(line.setting.runs) for line in found), "run"), title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    for number, heading in enumerate(headings(comparison, found)):
        table.add_column(heading.replace(", ", "\n"), justify="left" if number <= len(comparison.by) else "right", overflow="fold")
    for row in rows(comparison, found):
        table.add_row(*(text.replace(" [", "\n[") for text in row))
    return table


def markdown(comparison: Comparison, found: Sequence[Line]) -> str:
    """Return the table as Markdown."""
    names = headings(comparison, found)
    cells = [[text.replace("|", "\\|") for text in row] for row in rows(comparison, found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *cells)) + "\n"


def replaced(page: str, mark: str, text: str) -> str:
    """Return a Markdown page with a new text between `<!-- mark -->` and `<!-- end -->`. Raises UserError unless it has one such place."""
    between = re.compile(rf"(<!-- {re.escape(mark)} -->\n).*?(<!-- end -->)", re.DOTALL)
    written, count = between.subn(lambda match: match[1] + text + match[2], page)
    if count != 1:
        raise UserError(f"the page has {count} places from <!-- {mark} --> to <!-- end -->, and needs one")
    return written


def write_settings(path: Path, comparison: Comparison, found: Sequence[Line]) -> None:
    """Write the statistics of every setting as CSV, in full precision; times in seconds."""
    names = ["env", *comparison.by, "runs"]
    for name in (*(f"final_{statistic.lower()}" for statistic in STATISTICS), "best_median", "env_steps_per_s_median"):
        names += [name, f"{name}_low", f"{name}_high"]
    metrics = comparison.metrics
    names += [f"{name}{end}" for name in metrics for end in ("", "_low", "_high")]
    names += ["threshold", "reached", *(f"{kind}_to_threshold{end}" for kind in ("env_steps", "s") for end in ("", "_low", "_high"))]
    table = []
    for line in found:
        row: list[object] = [line.setting.env, *line.setting.values, len(line.setting.runs)]
        for each in (*line.final.values(), line.best, line.throughput, *(_median(line.setting.measured(name)) for name in metrics)):
            row += each
        if line.reached:
            row += [line.reached.threshold, line.reached.runs, *line.reached.env_steps, *line.reached.seconds]
        table.append(row)
    write_csv(path, names, table)


def write_runs(path: Path, comparison: Comparison) -> None:
    """Write one row for each run as CSV."""
    metrics = comparison.metrics
    names = ["folder", "env", *comparison.by, "seed", "state", "final", "best", "env_steps_per_s"]
    names += ["threshold", "env_steps_to_it", "s_to_it"]
    table: list[list[object]] = []
    for setting in comparison.settings:
        threshold = comparison.threshold_of(setting)
        for run in setting.runs:
            curve = run.curve(setting.returns)
            if not curve.value.size:
                continue
            reached = ("", "", "") if threshold is None else (threshold, *run.first_at(setting.returns, threshold))
            returns = (curve.value[-1], curve.value.max())
            seed, measured = run.settings.get("seed"), [run.measures.get(name, math.nan) for name in metrics]
            table.append([run.folder, setting.env, *setting.values, seed, run.state, *returns, run.throughput, *reached, *measured])
    write_csv(path, [*names, *metrics], table)


def write_csv(path: Path, names: Sequence[str], table: Sequence[Sequence[object]]) -> None:
    """Write a CSV file; what is not known (NaN) is empty. Raises OSError."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for row in table:
        writer.writerow(["" if isinstance(cell, float) and math.isnan(cell) else _plain(cell) for cell in row])
    write_atomic(path, buffer.getvalue().encode())


def cell(each: Interval, scale: float = 1.0, unit: str = "") -> str:
    """Return `value [low, high]` in multiples of `scale`, each with two digits of the width of the interval; not reached is –."""
    value, low, high = (number / scale for number in each)
    if not math.isfinite(value):
        return "–"
    finite = [abs(number) for number in (value, low, high) if math.isfinite(number)]
    width = high - low
    known = math.isfinite(width) and width > 1e-6 * max(finite)
    decimals = max(0, (1 if known else DIGITS - 1) - math.floor(math.log10(width if known else abs(value) or 1.0)))
    texts = [f"{round(number, decimals) + 0.0:,.{decimals}f}" if math.isfinite(number) else "∞" for number in (value, low, high)]
    if not known and decimals:
        texts = [text.rstrip("0").rstrip(".") for text in texts]
    value_text, *ends = (f"{text}{unit}" for text in texts)
    return value_text if math.isnan(low) else f"{value_text} [{', '.join(ends)}]"


def _columns_of_reached(found: Sequence[Line]) -> dict[str, Column]:
    """Return the columns of the return to reach; none if there is none."""
    reached = [line.reached for line in found]
    thresholds = {each.threshold for each in reached if each}
    if not thresholds:
        return {}
    it = f"{thresholds.pop():g}" if len(thresholds) == 1 else "threshold"
    unit, seconds = unit_of_time([value for each in reached if each for value in each.seconds])
    counts = [f"{each.runs}/{len(line.setting.curves())}" if each else "" for line, each in zip(found, reached, strict=True)]
    several = {"threshold": Column(it, [f"{each.threshold:g}" if each else "" for each in reached])} if it == "threshold" else {}
    return several | {
        "reached": Column(f"runs that reach {it}", counts),
        "steps_to": Column(f"env_steps to {it}, median", [_count(each.env_steps) if each else "" for each in reached]),
        "time_to": Column(f"{unit} of training to {it}, median", [cell(each.seconds, seconds) if each else "" for each in reached]),
    }


def _count(each: Interval) -> str:
    return cell(each, *prefix(each.value))


def _plain(cell: object) -> object:
    return float(cell) if isinstance(cell, float) else cell
