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

from common import DOCS, ROOT, settings, table

import warprun

KEPT = DOCS / "benchmarks" / "testbed.json"
AS_KEPT = "device=cpu concurrency.threads=1 tuned=none total_steps=100000000 eval.every=3s checkpoint.best=false log.tensorboard=false"
FIXED = {
    "ppo": "agent.horizon=16 agent.minibatches=4 agent.epochs=4 agent.learning_rate=0.001 agent.desired_kl=null agent.entropy_coef=0.01"
    " agent.gamma=0.99 agent.return_window=null",
}
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
    more = {"derived": "", "fixed": FIXED.get(chosen.agent, ""), "set": chosen.set}
    rows = []
    for name in chosen.only:
        task = TASKS[name]
        common = f"{task.overrides} agent={chosen.agent} {AS_KEPT} env.solved_at={task.bar}"
        warm: set[str] = set()
        for defaults in chosen.defaults:
            cells = []
            for n_envs in chosen.envs:
                runs = []
                for seed in range(chosen.seeds):
                    given = f"{common} n_envs={n_envs} seed={seed} max_minutes={chosen.seconds / 60:.4g} {more[defaults]}".strip()
                    if (given not in kept or chosen.again) and time.monotonic() < deadline:
                        if defaults not in warm:
                            warm.add(defaults)
                            measure(f"{common} n_envs={n_envs} until_steps=1 eval.final_episodes=1 {more[defaults]}")
                        kept[given] = measure(given)
                        print(name, n_envs, seed, defaults, kept[given], flush=True)
                        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
                    runs += [kept[given]] if given in kept else []
                cells.append(cell(runs))
            rows.append([name, f"{task.bar:g}", defaults, *cells])
    print(table(["task", "bar", "defaults", *(f"n_envs={n:,}" for n in chosen.envs)], rows))


def cell(runs: list[dict[str, Any]]) -> str:
    """Return how many runs are solved, of how many, and their mean return."""
    return f"{sum(run['solved'] for run in runs)}/{len(runs)}, {statistics.mean(run['return'] for run in runs):.4g}" if runs else ""


if __name__ == "__main__":
    with chdir(ROOT / "scripts" / "testbed"):
        main()
