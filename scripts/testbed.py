"""Train tasks that nobody has tuned, with the defaults and with other settings, and print how many seeds reach the bar.

    python scripts/testbed.py [--only TASK ...] [--envs N ...] [--seeds N] [--defaults derived fixed set]
                               [--set "KEY=VALUE ..."] [--agent NAME] [--seconds S] [--minutes M] [--again]

`derived` are the defaults that follow from the run (docs/defaults.md), `fixed` those that do not, `set` derived ones
with the settings of --set.

A run has one thread and --seconds of wall-clock time without compilation, which the first run of a task does. Runs are
kept in docs/benchmarks/testbed.json and are not repeated while their settings stay the same, except with --again; with
--minutes no run starts after that time, so a table can be measured in several calls. A cell of the table is the number
of seeds that reach the bar and of all seeds, and the mean final return. The environments that no other page has are in
scripts/testbed.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from contextlib import chdir, redirect_stdout
from io import StringIO
from typing import Any, NamedTuple

from common import DOCS, FIXED_PPO, ROOT, settings, table

import warprun

KEPT = DOCS / "benchmarks" / "testbed.json"
AS_KEPT = "device=cpu concurrency.threads=1 tuned=none total_steps=100000000 eval.every=3s checkpoint.best=false log.tensorboard=false"
FIXED = {"ppo": FIXED_PPO}
"""Agent -> the defaults of docs/configuration.md, which do not depend on the run."""


class Task(NamedTuple):
    """An environment, and the return to reach: its own bar, or one from a reference."""

    overrides: str
    bar: float
    source: str


TASKS = {
    "cartpole": Task("env=cartpole", 475.0, "env.solved_at"),
    "acrobot": Task("env=acrobot", -85.0, "env.solved_at"),
    "pendulum": Task("env=pendulum", -172.0, "env.solved_at"),
    "mountain_car_continuous": Task("env=mountain_car_continuous", 90.0, "env.solved_at"),
    "lunar_lander": Task("env=gymnasium env.id=LunarLander-v3", 200.0, "Gymnasium"),
    "integrator_small": Task("env=integrator env.params.scale=1e-6", -4.5e-6, "linear-quadratic optimum -3.40e-6"),
    "integrator_large": Task("env=integrator env.params.scale=1e6", -4.5e6, "linear-quadratic optimum -3.40e6"),
    "bandit": Task("env=bandit", 1000.9, "optimum 1001"),
    "reactor": Task("env=reactor", -12_000.0, "predictive control -9,292, constant heating -15,162"),
    "harvest": Task("env=harvest", 3.75e7, "best threshold of two efforts 3.89e7, best constant effort 3.65e7"),
    "rooms": Task("env=rooms", -85.0, "greedy control -74.4"),
}
Kept = dict[str, dict[str, Any]]
"""Overrides of a run -> its numbers."""


def measure(overrides: str) -> dict[str, Any]:
    """Train a run in this process; return its numbers."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        result = warprun.train([*overrides.split(), f"run_dir={folder}/run"])
    found = {"solved": result.solved, "return": result.eval_return, "env_steps": result.env_steps, "wall_s": round(result.wall_s, 1)}
    return found | {"cpu_s": round(time.process_time() - began, 1), "load": round(os.getloadavg()[0], 1)}


def of_runs(task: Task, agent: str, n_envs: int, more: str, seconds: float, seeds: int) -> list[str]:
    """Return the overrides of the runs of a cell, one for each seed."""
    common = f"{task.overrides} agent={agent} {AS_KEPT} env.solved_at={task.bar}"
    return [f"{common} n_envs={n_envs} seed={seed} max_minutes={seconds / 60:.4g} {more}".strip() for seed in range(seeds)]


def cell(runs: list[dict[str, Any]]) -> str:
    """Return how many runs are solved, of how many, and their mean return."""
    return f"{sum(run['solved'] for run in runs)}/{len(runs)}, {statistics.mean(run['return'] for run in runs):.4g}" if runs else ""


class Columns(NamedTuple):
    """The runs of a table, apart from the tasks."""

    agent: str
    envs: list[int]
    seeds: int
    seconds: float
    more: dict[str, str]
    """Name of defaults -> their overrides."""

    def runs(self, task: Task, n_envs: int, defaults: str) -> list[str]:
        """Return the overrides of the runs of a cell."""
        return of_runs(task, self.agent, n_envs, self.more[defaults], self.seconds, self.seeds)

    def table(self, rows: list[list[str]]) -> str:
        """Return a table in Markdown."""
        return table(["task", "bar", "defaults", *(f"n_envs={n:,}" for n in self.envs)], rows)


def rows_of(kept: Kept, name: str, columns: Columns) -> list[list[str]]:
    """Return the rows of a task."""
    task, rows = TASKS[name], []
    for defaults in columns.more:
        cells = [[kept[run] for run in columns.runs(task, n, defaults) if run in kept] for n in columns.envs]
        rows.append([name, f"{task.bar:g}", defaults, *map(cell, cells)])
    return rows


def of_page(kept: Kept) -> str:
    """Return the table of docs/defaults.md: how often each task is solved with derived and with fixed defaults."""
    columns = Columns("ppo", [1, 16, 1000, 10_000], 10, 30.0, {"derived": "", "fixed": FIXED["ppo"]})
    tasks = [name for name, task in TASKS.items() if any(run in kept for run in columns.runs(task, 1000, "derived"))]
    rows = [line for name in tasks for line in rows_of(kept, name, columns)]
    for defaults in columns.more:
        all_runs = [[kept[run] for name in tasks for run in columns.runs(TASKS[name], n, defaults) if run in kept] for n in columns.envs]
        rows.append(["all", "", defaults, *(f"{sum(run['solved'] for run in runs)}/{len(runs)}" for runs in all_runs)])
    return columns.table(rows)


def main() -> None:
    """Measure what is missing, and print the table of what was asked for."""
    chosen = settings(
        __doc__,
        agent="ppo",
        only=list(TASKS),
        envs=[1, 16, 1000],
        seeds=5,
        defaults=["derived"],
        seconds=30.0,
        minutes=1e9,
        again=False,
        set="",
    )
    deadline = time.monotonic() + 60 * chosen.minutes
    kept: Kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    every = {"derived": "", "fixed": FIXED.get(chosen.agent, ""), "set": chosen.set}
    more = {defaults: every[defaults] for defaults in chosen.defaults}
    columns = Columns(chosen.agent, chosen.envs, chosen.seeds, chosen.seconds, more)
    for name in chosen.only:
        for defaults in more:
            runs = [run for n_envs in chosen.envs for run in columns.runs(TASKS[name], n_envs, defaults)]
            missing = [run for run in runs if run not in kept or chosen.again]
            if missing and time.monotonic() < deadline:
                measure(f"{missing[0]} until_steps=1 eval.final_episodes=1")  # compiles
            for run in missing:
                if time.monotonic() < deadline:
                    kept[run] = measure(run)
                    print(name, defaults, run.partition("n_envs=")[2].split(" max")[0], kept[run], flush=True)
                    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    print(columns.table([line for name in chosen.only for line in rows_of(kept, name, columns)]))


if __name__ == "__main__":
    with chdir(ROOT / "scripts" / "testbed"):
        main()
