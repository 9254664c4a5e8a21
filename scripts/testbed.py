"""Train tasks that nobody has tuned, with the defaults and with other settings, and print how many seeds reach the bar.

    python scripts/testbed.py [--only TASK ...] [--envs N ...] [--seeds N] [--defaults derived fixed sb3 set]
                               [--set "KEY=VALUE ..."] [--agent NAME] [--seconds S] [--minutes M] [--jobs N] [--again]

`derived` are the defaults that follow from the run (docs/defaults.md), `fixed` those that do not, `sb3` PPO of
Stable-Baselines3 with its own (testbed_sb3.py), `set` derived ones with the settings of --set.

The rules were chosen on the tasks of CHOSEN, and not on those of HELD. A run has one thread and --seconds of wall-clock
time without compilation, which a run before the first of a cell does. It is evaluated every three seconds, or as a task
says where episodes take long, and ends when an evaluation finds it solved. --jobs cells are measured at a time.
Cells are kept in docs/benchmarks/testbed.json and are not measured again while what --defaults and --set name stays the
same; --again is for changed rules. With --minutes no run starts after that time, so a table can be measured in several
calls. A cell is the number of seeds that reach the bar and of all seeds, and the mean final return. The environments
that no other page has are in scripts/testbed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import chdir, redirect_stdout
from io import StringIO
from multiprocessing import get_context
from typing import Any, NamedTuple

from common import DOCS, FIXED, ROOT, require, settings, table

import warprun
from warprun.errors import TrainingFailed

KEPT = DOCS / "benchmarks" / "testbed.json"
AS_KEPT = "device=cpu concurrency.threads=1 tuned=none total_steps=100000000 eval.every=3s checkpoint.best=false log.tensorboard=false"
SB3 = "by=stable_baselines3"
"""Ends the name of a run of Stable-Baselines3; what is before it describes the run."""
SECONDS = 60.0
"""Wall-clock time of a run of the tables, without compilation."""
SHARE = 0.8
"""Where a bar lies between the return of a policy that does not look and a reference."""


class Task(NamedTuple):
    """An environment, and the return to reach: its own bar, or one from a reference."""

    overrides: str
    bar: float
    source: str
    ends: tuple[float, float] | None = None
    """What testbed_references.py computes: the return of the best policy that does not look, and of the reference."""


def between(overrides: str, blind: float, reference: float, what: str) -> Task:
    """Return a task whose bar is SHARE of the way from one return to the other, to four digits."""
    bar = float(f"{blind + SHARE * (reference - blind):.4g}")
    return Task(overrides, bar, f"{what} {reference:,g}, without looking {blind:,g}", (blind, reference))


CHOSEN = {
    "cartpole": Task("env=cartpole", 475.0, "env.solved_at"),
    "acrobot": Task("env=acrobot", -85.0, "env.solved_at"),
    "pendulum": Task("env=pendulum", -172.0, "env.solved_at"),
    "integrator_small": Task("env=integrator env.params.scale=1e-6", -4.5e-6, "linear-quadratic optimum -3.40e-6"),
    "reactor": Task("env=reactor", -12_000.0, "predictive control -9,292, constant heating -15,162"),
    "harvest": Task("env=harvest", 3.75e7, "best threshold of two efforts 3.89e7, best constant effort 3.65e7"),
    "mountain_car_continuous": Task("env=mountain_car_continuous", 90.0, "env.solved_at"),
    "integrator_large": Task("env=integrator env.params.scale=1e6", -4.5e6, "linear-quadratic optimum -3.40e6"),
    "bandit": Task("env=bandit", 1000.9, "optimum 1001"),
    "rooms": Task("env=rooms", -85.0, "greedy control -74.4"),
    "pendulum_wide": Task("env=pendulum agent.network.hidden=[256,256]", -172.0, "env.solved_at"),
    "acrobot_relu": Task("env=acrobot agent.network.activation=relu", -85.0, "env.solved_at"),
    "lunar_lander": Task("env=gymnasium env.id=LunarLander-v3 eval.every=never", 200.0, "Gymnasium"),
    "heat_equation": between("env=heat_equation eval.every=20s", -12.52, -0.4023, "best proportional control"),
    "chemostat": between("env=chemostat", 81.4, 98.87, "best proportional control"),
    "service": between("env=service", -302.1, -213.7, "optimum"),
    "ring": between("env=ring", -26.44, -4.606, "best proportional control"),
    "switch": between("env=switch", 239, 634.8, "optimum"),
    "reservoir": between("env=reservoir", -24_240, -5540, "optimum"),
}
"""The rules of docs/defaults.md were chosen on these."""
HELD = {
    "mountain_car": Task("env=mountain_car", -110.0, "env.solved_at"),
    "booster": between("env=booster", -7.935, -4.121, "best quadratic regulator"),
    "booster_continuous": between("env=booster_continuous", -7.935, -3.423, "best quadratic regulator"),
    "catalysis": between("env=catalysis env.params.shaping=1", -3.089, 75.68, "best path"),
    "glucose": between("env=glucose", -1893, -316.3, "best proportional control"),
    "inventory": between("env=inventory", -1726, -1173, "optimum"),
    "epidemic": between("env=epidemic", -5.223e6, -3.825e6, "best threshold of two levels"),
    "maze": between("env=maze", -0.8441, 0.9173, "optimum"),
    "screening": between("env=screening", 2.5, 9.025, "optimum"),
    "plate": between("env=plate", -46.33, -9.154, "linear-quadratic optimum"),
    "packing": between("env=packing", 1.706, 2.42, "optimum"),
    "battery": between("env=battery", 140.3, 1705, "optimum"),
    "antenna": between("env=antenna", -391.5, -100.2, "linear-quadratic optimum"),
    "search": between("env=search", 1.95, 8.053, "best of Bayesian policies"),
    "lunar_lander_continuous": Task("env=gymnasium env.id=LunarLander-v3 env.kwargs.continuous=true eval.every=never", 200.0, "Gymnasium"),
    "detectors": between("env=detectors", -198.6, -71.12, "best index"),
    "synthesis": between("env=synthesis", 0.0, 4869, "best proportional control"),
    "shield": between("env=shield", 14.95, 278.9, "best quadratic regulator"),
    "island": between("env=island", -664.9, -67.11, "best proportional control"),
    "forest": between("env=forest", 0.0, 2782, "optimum"),
    "pump": between("env=pump", 1556, 4018, "optimum"),
}
"""No rule was chosen on these."""
TASKS = CHOSEN | HELD
Kept = dict[str, dict[str, Any]]
"""Overrides of a run -> its numbers."""


def by_warprun(overrides: str) -> dict[str, Any]:
    """Train a run in this process; return its numbers. One that fails, as when its networks diverge, has no return."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        try:
            result = warprun.train([*overrides.split(), f"run_dir={folder}/run"])
        except TrainingFailed as failure:
            return {"solved": False, "return": None, "failed": str(failure)}
    return {"solved": result.solved, "return": result.eval_return, "env_steps": result.env_steps, "wall_s": round(result.wall_s, 1)}


def measure(run: str) -> dict[str, Any]:
    """Train a run by what it names, warprun or Stable-Baselines3; return its numbers, and the load of the machine."""
    began = time.process_time()
    if run.endswith(SB3):
        from testbed_sb3 import measure as by_sb3

        found = by_sb3(run.removesuffix(SB3))
    else:
        found = by_warprun(run)
    return found | {"cpu_s": round(time.process_time() - began, 1), "load": round(os.getloadavg()[0], 1)}


def of_cell(runs: list[str], deadline: float) -> Kept:
    """Compile what the runs of a cell need, and measure those that begin before `deadline` (`time.monotonic`)."""
    if not runs or time.monotonic() > deadline:
        return {}
    by_warprun(f"{runs[0].removesuffix(SB3)} until_steps=1 eval.final_episodes=1")  # as little as Stable-Baselines3 needs, too
    return {run: measure(run) for run in runs if time.monotonic() < deadline}


def of_runs(task: Task, agent: str, n_envs: int, more: str, seconds: float, seeds: int) -> list[str]:
    """Return the overrides of the runs of a cell, one for each seed."""
    common = f"agent={agent} {AS_KEPT} {task.overrides} env.solved_at={task.bar}"
    return [f"{common} n_envs={n_envs} seed={seed} max_minutes={seconds / 60:.4g} {more}".strip() for seed in range(seeds)]


def cell(runs: list[dict[str, Any]]) -> str:
    """Return how many runs are solved, of how many, and their mean return, or that one has failed."""
    if not runs:
        return ""
    returns = [run["return"] for run in runs]
    mean = "failed" if None in returns else f"{statistics.mean(returns):.4g}"
    return f"{sum(run['solved'] for run in runs)}/{len(runs)}, {mean}"


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


def share(kept: Kept, runs: list[str]) -> str:
    """Return how many of the runs that were measured are solved, and of how many; nothing if none was measured."""
    solved = [kept[run]["solved"] for run in runs if run in kept]
    return f"{sum(solved)}/{len(solved)}" if solved else ""


def table_of(kept: Kept, tasks: list[str]) -> str:
    """Return the table of tasks: how often each is solved with the derived defaults, the fixed ones, and those of Stable-Baselines3."""
    columns = Columns("ppo", [1, 16, 1000, 10_000], 10, SECONDS, {"derived": "", "fixed": FIXED["ppo"], "sb3": SB3})
    measured = {
        defaults: {n: [name for name in tasks if any(run in kept for run in columns.runs(TASKS[name], n, defaults))] for n in columns.envs}
        for defaults in columns.more
    }
    rows = [line for name in tasks for line in rows_of(kept, name, columns) if any(line[3:])]
    for title, among in (("all", dict.fromkeys(columns.envs, tasks)), ("those of sb3", measured["sb3"])):
        for defaults in columns.more:
            shares = [share(kept, [run for name in among[n] for run in columns.runs(TASKS[name], n, defaults)]) for n in columns.envs]
            rows += [[title, "", defaults, *shares]] if any(shares) and (title, defaults) != ("all", "sb3") else []
    return columns.table(rows)


def of_page(kept: Kept) -> Iterator[tuple[str, str]]:
    """Yield the marks and the tables of docs/defaults.md."""
    yield "test bed, chosen", table_of(kept, list(CHOSEN))
    yield "test bed, held out", table_of(kept, list(HELD))


def without_sb3(agent: str, tasks: list[str]) -> list[str]:
    """Return the tasks that Stable-Baselines3 cannot train. Exits with code 2 unless it is installed and the agent is ppo."""
    require("stable_baselines3", "stable-baselines3")
    if agent != "ppo":
        print(f"testbed: --defaults sb3 is for --agent ppo, not {agent}", file=sys.stderr)
        sys.exit(2)
    from testbed_sb3 import expresses

    return [name for name in tasks if not expresses(TASKS[name].overrides)]


def main() -> None:
    """Measure what is missing, and print the table of what was asked for."""
    chosen = settings(
        __doc__,
        agent="ppo",
        only=list(TASKS),
        envs=[1, 16, 1000],
        seeds=5,
        defaults=["derived"],
        seconds=SECONDS,
        minutes=1e9,
        jobs=1,
        again=False,
        set="",
    )
    deadline = time.monotonic() + 60 * chosen.minutes
    kept: Kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    every = {"derived": "", "fixed": FIXED[chosen.agent], "sb3": SB3, "set": chosen.set}
    more = {defaults: every[defaults] for defaults in chosen.defaults}
    columns = Columns(chosen.agent, chosen.envs, chosen.seeds, chosen.seconds, more)
    blank = without_sb3(chosen.agent, chosen.only) if "sb3" in more else []
    cells = [(name, n, defaults) for name in chosen.only for defaults in more for n in columns.envs]
    cells = [each for each in cells if not (each[2] == "sb3" and each[0] in blank)]
    missing = [[run for run in columns.runs(TASKS[name], n, defaults) if run not in kept or chosen.again] for name, n, defaults in cells]
    with ProcessPoolExecutor(chosen.jobs, get_context("spawn")) as pool:
        running = {pool.submit(of_cell, runs, deadline): each for runs, each in zip(missing, cells, strict=True)}
        for done in as_completed(running):
            if found := done.result():
                kept |= found
                KEPT.write_text(json.dumps(kept, indent=1) + "\n")
                print(*running[done], cell(list(found.values())), [run.get("wall_s") for run in found.values()], flush=True)
    print(columns.table([line for name in chosen.only for line in rows_of(kept, name, columns)]))


if __name__ == "__main__":
    with chdir(ROOT / "scripts" / "testbed"):
        main()
