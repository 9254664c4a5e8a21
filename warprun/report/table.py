"""The table of a comparison: statistics over seeds with the digits that their intervals support, as text, Markdown and
CSV.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from warprun.errors import counted, printable
from warprun.files import write_atomic
from warprun.report.compare import Comparison, Setting, text
from warprun.report.statistics import Interval, Statistic, interval, iqm, mean, median
from warprun.runs.records.terminal import prefix

DIGITS = 4
"""Digits of a number whose interval has no width beyond rounding errors."""
STATISTICS: dict[str, Statistic] = {"median": median, "mean": mean, "IQM": iqm}


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
        interval(speeds, median) if speeds.size else Interval(math.nan, math.nan, math.nan),
        None if threshold is None else _reached(setting, threshold),
    )


def _reached(setting: Setting, threshold: float) -> Reached:
    steps, wall = setting.reached(threshold)
    return Reached(threshold, int(np.isfinite(steps).sum()), interval(steps, median), interval(wall, median))


def unit_of_time(seconds: Sequence[float]) -> tuple[str, float]:
    """Return the unit in which times up to the largest finite one are read best, and its seconds."""
    longest = max((value for value in seconds if math.isfinite(value)), default=0.0)
    return ("s", 1.0) if longest < 180 else ("min", 60.0) if longest < 3 * 3600 else ("h", 3600.0)


def headings(comparison: Comparison, found: Sequence[Line]) -> list[str]:
    """Return the headings of the table."""
    unit, _ = _time_unit(found)
    name = f"final {comparison.settings[0].returns} return"
    columns = ["env", *comparison.by, "runs", *(f"{name}, {statistic}" for statistic in STATISTICS), "best return, median"]
    thresholds = {line.reached.threshold for line in found if line.reached}
    if thresholds:
        it = f"{thresholds.pop():g}" if len(thresholds) == 1 else "threshold"
        columns += ["threshold"] if it == "threshold" else []
        columns += [f"runs that reach {it}", f"env_steps to {it}, median", f"{unit} of training to {it}, median"]
    return [*columns, "env_steps/s, median"]


def rows(found: Sequence[Line]) -> list[list[str]]:
    """Return the cells of the table as text: `value [low, high]`."""
    columns = [[cell(line.final[name]) for line in found] for name in STATISTICS]
    columns.append([cell(line.best) for line in found])
    if any(line.reached for line in found):
        columns += _columns_of_reached(found)
    columns.append([_count(line.throughput) for line in found])
    table = []
    for line, *cells in zip(found, *columns, strict=True):
        setting = line.setting
        table.append([printable(setting.env), *(printable(text(value)) for value in setting.values), str(len(setting.runs)), *cells])
    return table


def terminal(comparison: Comparison, found: Sequence[Line]) -> Table:
    """Return the table for a terminal, with intervals below the values."""
    table = Table(
        title=counted(sum(len(line.setting.runs) for line in found), "run"), title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    for number, heading in enumerate(headings(comparison, found)):
        table.add_column(heading.replace(", ", "\n"), justify="left" if number <= len(comparison.by) else "right", overflow="fold")
    for row in rows(found):
        table.add_row(*(text.replace(" [", "\n[") for text in row))
    return table


def markdown(comparison: Comparison, found: Sequence[Line]) -> str:
    """Return the table as Markdown."""
    names = headings(comparison, found)
    cells = [[text.replace("|", "\\|") for text in row] for row in rows(found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *cells)) + "\n"


def write_settings(path: Path, comparison: Comparison, found: Sequence[Line]) -> None:
    """Write the statistics of every setting as CSV, in full precision; times in seconds."""
    names = ["env", *comparison.by, "runs"]
    for name in (*(f"final_{statistic.lower()}" for statistic in STATISTICS), "best_median", "env_steps_per_s_median"):
        names += [name, f"{name}_low", f"{name}_high"]
    names += ["threshold", "reached", *(f"{kind}_to_threshold{end}" for kind in ("env_steps", "s") for end in ("", "_low", "_high"))]
    table = []
    for line in found:
        row: list[object] = [line.setting.env, *line.setting.values, len(line.setting.runs)]
        for each in (*line.final.values(), line.best, line.throughput):
            row += each
        if line.reached:
            row += [line.reached.threshold, line.reached.runs, *line.reached.env_steps, *line.reached.seconds]
        table.append(row)
    write_csv(path, names, table)


def write_runs(path: Path, comparison: Comparison) -> None:
    """Write one row for each run as CSV."""
    names = [
        "folder",
        "env",
        *comparison.by,
        "seed",
        "state",
        "final",
        "best",
        "env_steps_per_s",
        "threshold",
        "env_steps_to_it",
        "s_to_it",
    ]
    table: list[list[object]] = []
    for setting in comparison.settings:
        threshold = comparison.threshold_of(setting)
        for run in setting.runs:
            curve = run.curve(setting.returns)
            if not curve.value.size:
                continue
            reached = ("", "", "") if threshold is None else (threshold, *run.first_at(setting.returns, threshold))
            returns = (curve.value[-1], curve.value.max())
            seed = run.settings.get("seed")
            table.append([run.folder, setting.env, *setting.values, seed, run.state, *returns, run.throughput, *reached])
    write_csv(path, names, table)


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


def _columns_of_reached(found: Sequence[Line]) -> list[list[str]]:
    reached, (_, seconds) = [line.reached for line in found], _time_unit(found)
    several = len({each.threshold for each in reached if each}) > 1
    return [
        *([["" if each is None else f"{each.threshold:g}" for each in reached]] if several else []),
        ["" if each is None else f"{each.runs}/{len(line.setting.curves())}" for line, each in zip(found, reached, strict=True)],
        ["" if each is None else _count(each.env_steps) for each in reached],
        ["" if each is None else cell(each.seconds, seconds) for each in reached],
    ]


def _time_unit(found: Sequence[Line]) -> tuple[str, float]:
    return unit_of_time([value for line in found if line.reached for value in line.reached.seconds])


def _count(each: Interval) -> str:
    return cell(each, *prefix(each.value))


def _plain(cell: object) -> object:
    return float(cell) if isinstance(cell, float) else cell
