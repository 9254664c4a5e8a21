"""Measure runs of a study, one after the other; scripts/results.py starts it and gives it the runs.

    python scripts/one_run.py TASK

TASK is JSON with the fields of `Task` besides the overrides, and `measure`, MODULE:FUNCTION of the function that measures.
Each line of the standard input is a list of overrides; each line of the standard output the numbers of a run. One process
measures many runs, because loading torch and kernels takes longer than many trainings.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import chdir, closing, redirect_stdout
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from common import children_cpu_s

import warprun
from warprun.config.compose import compose
from warprun.errors import TrainingFailed, UserError
from warprun.runs import checkpoint
from warprun.runs.build import set_up
from warprun.runs.evaluation import Evaluator
from warprun.runs.opening import load_checkpoint, open_run, trained_agent
from warprun.state import derived_seed

FOLDER = Path("run")
"""The run folder, in the current one."""
POINTS = 60
"""Most points of a curve."""
Rows = list[dict[str, Any]]


class Task(NamedTuple):
    """What is to be measured."""

    overrides: Sequence[str]
    evaluations: Sequence[tuple[str, int, bool, int]]
    """See `studies.Study`."""
    curves: Sequence[str]
    """Metrics whose course is kept."""


def trained(task: Task) -> dict[str, Any]:
    """Train a run, and return its numbers and those of its evaluations."""
    began = time.perf_counter(), cpu_s()
    overrides = [*task.overrides, f"run_dir={FOLDER}"]
    if (compose(overrides).concurrency.wanted or 1) > 1:  # the command starts the processes
        subprocess.run([sys.executable, "-m", "warprun", *overrides], stdout=subprocess.DEVNULL, check=True)
    else:
        warprun.train(overrides)
    found: dict[str, Any] = {"command_s": round(time.perf_counter() - began[0], 2), "cpu_s": round(cpu_s() - began[1], 2)}
    status = json.loads((FOLDER / "status.json").read_text())
    rows = [json.loads(line) for line in (FOLDER / "metrics.jsonl").read_text().splitlines()]
    found |= {"state": status["state"], "env_steps": status["env_steps"], "wall_s": round(status["wall_s"], 2)}
    found |= {name: value for name, value in rows[-1].items() if name == "actors/lag_mean"}
    found |= course(rows, "train/return", "training/return")
    for name in task.curves:
        found |= course(rows, name, f"during/{name}") | {f"curve/{name}": curve(rows, name)}
    speeds = [row["perf/env_steps_per_s"] for row in rows if "perf/env_steps_per_s" in row]
    if speeds:  # the first iteration compiles or loads kernels
        found["steps_per_s"] = statistics.median(speeds)
        found["training_s"] = status["wall_s"] - rows[0]["wall_s"] + rows[0]["env_steps"] / found["steps_per_s"]
    for line, episodes, greedy, seed in task.evaluations:
        found["bar"], results = evaluated(line, episodes, greedy, seed)
        found |= {f"{line}/{name}": value for name, value in results.items()}
    return found


def evaluated(line: str, episodes: int, greedy: bool, seed: int) -> tuple[float | None, dict[str, float]]:
    """Return the return that solves the environment, and the metrics of an evaluation of a checkpoint, `last` or `best`.

    The environment's report is not made.
    """
    run = open_run(FOLDER, "cpu", trusted=False, episodes=episodes)
    setup = set_up(run.config)
    agent = trained_agent(setup, load_checkpoint(run, checkpoint.BEST if line == "best" else checkpoint.LAST))
    with closing(Evaluator(setup, agent, episodes, derived_seed(seed, "eval"))) as evaluator:
        return run.config.env.solved_at, evaluator.play(greedy).metrics()


def course(rows: Rows, metric: str, name: str) -> dict[str, float]:
    """Return the mean of a metric over the environment steps of a run as `name`; nothing if there are no values.

    Records may lie apart unevenly, so the mean is over steps. Of a record without an ended episode the return does not count.
    """
    steps, values = points(rows, metric)
    return {name: float(np.interp(np.linspace(0.0, steps[-1], 200), steps, values).mean())} if steps else {}


def curve(rows: Rows, metric: str) -> list[list[float]]:
    """Return environment steps and values of a metric, at most `POINTS`, with five digits."""
    steps, values = points(rows, metric)
    shown = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))
    return [[steps[n] for n in shown], [float(f"{values[n]:.5g}") for n in shown]]


def points(rows: Rows, metric: str) -> tuple[list[int], list[float]]:
    """Return environment steps and values of the records of a metric."""
    known = [row for row in rows if metric in row and (row.get("train/episodes") or not metric.startswith("train/"))]
    return [row["env_steps"] for row in known], [row[metric] for row in known]


def cpu_s() -> float:
    """Return the processor time of this process and of those that it has waited for, s."""
    return time.process_time() + children_cpu_s()


def main() -> None:
    """Measure the runs of the standard input."""
    task = json.loads(sys.argv[1])
    module, _, function = task.pop("measure").partition(":")
    measure = getattr(import_module(module), function)
    for line in sys.stdin:
        with TemporaryDirectory() as folder, chdir(folder), redirect_stdout(sys.stderr):
            try:
                found = measure(Task(json.loads(line), **task))
            except (UserError, TrainingFailed, subprocess.CalledProcessError) as error:
                print(f"one_run: {error}")
                found = {"failed": True}
        print(json.dumps(found | {"load": os.getloadavg()[0]}), flush=True)


if __name__ == "__main__":
    main()
