"""The tables of docs/defaults.md: runs of docs/benchmarks/testbed.csv, with the tasks and bars of examples/testbed/bars.csv.

`settings` of a run are `derived`, `fixed` (FIXED of common.py), `sb3` (PPO of Stable-Baselines3), or words that were added to a command.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Iterator

from common import DOCS, ROOT, table

Rows = list[dict[str, str]]
PAGE = DOCS / "defaults.md"
RUNS, TASKS = DOCS / "benchmarks" / "testbed.csv", ROOT / "examples" / "testbed" / "bars.csv"
SIZES = ("1", "16", "1000", "10000")
"""Numbers of environments."""
NAMED = ("derived", "fixed", "sb3")


def some(rows: Rows, **values: str) -> Rows:
    """Return the rows that have these values."""
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


def solved(runs: Rows) -> str:
    """Return how many runs are solved, of how many; nothing if there is none."""
    return f"{len(some(runs, solved='true'))}/{len(runs)}" if runs else ""


def cell(runs: Rows) -> str:
    """Return how many runs are solved, of how many, and their mean return. Raises ValueError if one has none, because it failed."""
    return f"{solved(runs)}, {statistics.mean(float(run['return']) for run in runs):.4g}"


def _heads(*titles: str) -> list[str]:
    return [*titles, *(f"n_envs={int(size):,}" for size in SIZES)]


def counts(runs: Rows, tasks: Rows) -> str:
    """Return the table of how many runs are solved, of the tasks that rules were chosen on and of the others."""
    runs = some(runs, minutes="1")
    by_sb3 = {run["task"] for run in some(runs, settings="sb3")}
    held = [task for task in tasks if task["rules"] != "chosen"]
    sets = {
        "chosen": (some(tasks, rules="chosen"), NAMED[:1]),
        "held out": (held, NAMED[:2]),
        "held out, written last": (some(tasks, rules="held out, written last"), NAMED[:2]),
        "held out, that Stable-Baselines3 can train": ([task for task in held if task["task"] in by_sb3], NAMED),
    }
    rows = []
    for title, (among, several) in sets.items():
        names = {task["task"] for task in among}
        for settings in several:
            found = [run for run in some(runs, settings=settings) if run["task"] in names]
            rows.append([f"{title} ({len(names)})", settings, *(solved(some(found, n_envs=size)) for size in SIZES)])
    return table(_heads("tasks", "settings"), rows)


def learned(runs: Rows, tasks: Rows) -> str:
    """Return the table of tasks with the derived settings."""
    runs = some(runs, minutes="1", settings="derived")
    rows = [
        [task["task"], f"{float(task['bar']):g}", *(cell(some(runs, task=task["task"], n_envs=size)) for size in SIZES)] for task in tasks
    ]
    return table(_heads("task", "bar"), rows)


def others(runs: Rows) -> str:
    """Return the table of derived settings beside others, by the same seeds and time, with 1,000 environments."""
    rows = []
    for task, settings, minutes in dict.fromkeys((run["task"], run["settings"], run["minutes"]) for run in runs):
        if settings not in NAMED:
            same = some(runs, task=task, minutes=minutes, n_envs="1000")
            shown = re.sub(r"\d+\.\d{4,}(e-\d+)?", lambda number: f"{float(number[0]):.3g}", settings.replace("agent.", ""))
            rows.append(
                [task, f"{60 * float(minutes):g} s", *(cell(some(same, settings=each)) for each in ("derived", settings)), f"`{shown}`"]
            )
    return table(["task", "time", "derived", "others", "the others, of `agent`"], rows)


def of_page() -> Iterator[tuple[str, str]]:
    """Yield the marks and the tables of the page."""
    runs, tasks = (list(csv.DictReader(file.open())) for file in (RUNS, TASKS))
    yield "test bed, counts", counts(runs, tasks)
    yield "test bed, chosen", learned(runs, some(tasks, rules="chosen"))
    yield "test bed, held out", learned(runs, [task for task in tasks if task["rules"] != "chosen"])
    yield "test bed, others", others(runs)
