"""Runs of several ranks whose environments sleep: claims about throughput, and central inference (claim 11)."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from exarl.model import Outcome, Times, simulate
from warprun.parallel.launch import mpiexec

HERE = Path(__file__).parent
QUIET = (
    *("agent=a2c", "tuned=none", "device=cpu", "concurrency.threads=1"),
    *("log.live=false", "log.tensorboard=false", "eval.every=never", "eval.episodes=1", "eval.final_episodes=1"),
    *("checkpoint.every=never", "checkpoint.best=false", "stop_when_solved=false"),
)
Record = dict[str, Any]


def command(arguments: list[str]) -> str:
    """Run a command whose processes have one thread each; return what it prints. Raises SystemExit if it fails."""
    done = subprocess.run(arguments, cwd=HERE, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def sleepy(step_ms: float) -> list[str]:
    """Return the overrides of the environment whose step sleeps for `step_ms` milliseconds."""
    return ["env.module=./sleepy.py", "env.name=sleepy", f"env.kwargs.step_ms={step_ms}"]


def train(processes: int, *overrides: str) -> list[Record]:
    """Train A2C with several ranks, and return the records."""
    with tempfile.TemporaryDirectory() as folder:
        given = [*QUIET, *overrides, f"run_dir={folder}/run"]
        command([sys.executable, "ranks.py", str(processes), *given])
        return [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]


# Throughput -----------------------------------------------------------------------------------------------------------

TRAIN_MS, STEP_MS = 160.0, 32.0
"""The published 8 ms and 1.6 ms, times 20: what warprun itself does is then small beside them on a laptop, too."""
UPDATES, EVERY = 50, 5
"""Updates of a run, and between two records."""
ONE_LEARNER = [f"{mode} 1:{actors}" for actors in (1, 2, 4, 8) for mode in ("async", "queue")]
SEVERAL = [
    "async 2:8",
    "async 4:8",
    "async 8:8",
    "range 4:8",
    "random 4:8",
    "queue 1:13",
    "queue 2:12",
    "queue 1:16",
    "queue 8:16",
]
LARGEST = ["queue 1:27", "queue 4:24"]
AVERAGING = "queue 2:2"
CASES = [*ONE_LEARNER, AVERAGING, *SEVERAL, *LARGEST]
"""PROTOCOL LEARNERS:ACTORS of the real runs."""
FITTED = ("queue 1:1", AVERAGING)
"""Those that the times of the model are from."""


def parts(case: str) -> tuple[str, int, int]:
    """Return protocol, learners and actors."""
    protocol, _, sizes = case.partition(" ")
    learners, _, actors = sizes.partition(":")
    return protocol, int(learners), int(actors)


def measure(case: str) -> dict[str, float]:
    """Run a case; return what it did between its second record and its last but one."""
    protocol, learners, actors = parts(case)
    made = 1 if protocol in ("async", "queue") else actors * TRAIN_MS / STEP_MS / learners  # per rollout that is learned from
    mode = ["concurrency=async"] if protocol == "async" else ["concurrency=rma", f"concurrency.window={protocol}"]
    network = ["agent.network.module=./sleepy.py:SleepyNetwork", f"agent.network.kwargs.train_ms={TRAIN_MS}"]
    sizes = [
        f"n_envs={actors}",
        "agent.horizon=1",
        f"total_steps={int(UPDATES * learners * made)}",
        f"concurrency.learners={learners}",
    ]
    given = [*network, "agent.network.shared=true", "agent.normalize_advantage=false", f"log.every={EVERY}iterations"]
    return measured(case, train(learners + actors, *sleepy(STEP_MS), *mode, *sizes, *given))


def measured(case: str, records: list[Record]) -> dict[str, float]:
    """Return the rates and means of a run between its second record and its last but one."""
    _, learners, actors = parts(case)
    first, last, between = records[1], records[-2], records[2:-1]

    def gained(name: str) -> float:
        return float(last[name] - first[name])

    def mean(name: str) -> float:
        return statistics.mean(record[name] for record in between)

    rate = learners * gained("actors/rollouts_trained") / gained("wall_s")
    return {
        "rate": rate,
        "unique": rate * (1.0 - gained("actors/rollouts_reused") / gained("actors/rollouts_trained")),
        "lag": mean("actors/lag_mean"),
        "learner_waiting": mean("actors/learner_waiting_share"),
        "act_s": (1.0 - mean("actors/actor_waiting_share")) * actors / rate,
    }


def exchange() -> dict[str, float]:
    """Return the seconds of push, pop, show, read and message between two ranks."""
    found: dict[str, float] = json.loads(command([mpiexec(), "-n", "2", sys.executable, "exchange_times.py"]))
    return found


def times(exchanged: dict[str, float], runs: dict[str, dict[str, float]]) -> Times:
    """Return the times of the model: those of an exchange, and of the runs of one learner with one actor and of two with two."""
    one, two = (runs[case] for case in FITTED)
    train_s = 1.0 / one["rate"] - exchanged["show"] - exchanged["pop"]
    average = max(0.0, 2.0 / two["rate"] - 1.0 / one["rate"])
    return Times(train=max(TRAIN_MS / 1e3, train_s), act=max(STEP_MS / 1e3, one["act_s"]), average=average, **exchanged)


def predicted(case: str, given: Times, rollouts: int = 0) -> Outcome:
    """Return what the model says of a case."""
    protocol, learners, actors = parts(case)
    return simulate(protocol, learners, actors, given, rollouts or UPDATES * learners)


# Central inference ----------------------------------------------------------------------------------------------------

WIDTHS = {"10 k": 100, "1 M": 1000, "10 M": 3160}
"""Parameters -> units of each of two hidden layers."""
ACTORS, HORIZON, INFERENCE_STEP_MS = 4, 16, 8.0
FEATURES, OUTPUTS = 4, 2
"""Of the environment in sleepy.py."""


def bytes_per_step(mode: str, width: int) -> float:
    """Return the bytes between learner and actor for a step, without what both modes send once a rollout.

    `async` sends the weights once a rollout; `seed` sends the observation, and gets outputs and value, in every step.
    """
    parameters = (FEATURES + 1) * width + (width + 1) * width + (width + 1) * (OUTPUTS + 1)
    return 4.0 * parameters / HORIZON if mode == "async" else 4.0 * (FEATURES + OUTPUTS + 1)


def inference() -> dict[str, dict[str, float]]:
    """Return environment steps per second after a quarter of a run, and bytes per step, of all modes and sizes."""
    found = {}
    for size, width in WIDTHS.items():
        for mode in ("async", "seed"):
            network = [f"agent.network.hidden=[{width},{width}]", "agent.network.shared=true", f"n_envs={ACTORS}"]
            sizes = [f"agent.horizon={HORIZON}", f"total_steps={16 * ACTORS * HORIZON}", "log.every=1iterations"]
            records = train(1 + ACTORS, *sleepy(INFERENCE_STEP_MS), f"concurrency={mode}", *network, *sizes)
            first, last = records[len(records) // 4], records[-2]
            rate = (last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"])
            found[f"{size} {mode}"] = {"steps_per_s": rate, "bytes_per_step": bytes_per_step(mode, width)}
    return found
