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

HERE = Path(__file__).parent
QUIET = (
    *("agent=a2c", "tuned=none", "device=cpu", "concurrency.threads=1"),
    *("log.live=false", "log.tensorboard=false", "eval.every=never", "eval.episodes=1", "eval.final_episodes=1"),
    *("checkpoint.every=never", "checkpoint.best=false", "stop_when_solved=false"),
)
Record = dict[str, Any]


def sleepy(step_ms: float) -> list[str]:
    """Return the overrides of the environment whose step sleeps for `step_ms` milliseconds."""
    return ["env.module=./sleepy.py", "env.name=sleepy", f"env.kwargs.step_ms={step_ms}"]


def train(processes: int, *overrides: str) -> list[Record]:
    """Train A2C with several processes of one thread each, and return the records. Raises subprocess.CalledProcessError if they fail."""
    with tempfile.TemporaryDirectory() as folder:
        given = (*QUIET, *overrides, f"concurrency.processes={processes}", f"run_dir={folder}/run")
        command = [sys.executable, "-m", "warprun", *given]
        subprocess.run(command, cwd=HERE, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, check=True)
        return [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]


# Throughput -----------------------------------------------------------------------------------------------------------

TRAIN_MS, STEP_MS = 160.0, 32.0
"""The published 8 ms and 1.6 ms, times 20: what warprun itself does is then small beside them on a laptop, too."""
UPDATES, EVERY = 50, 5
"""Updates of a run, and between two records."""
CASES = [
    *(f"{mode} 1:{actors}" for actors in (1, 2, 4, 8) for mode in ("async", "queue")),
    *("queue 2:2", "async 2:8", "async 4:8", "async 8:8", "range 4:8", "random 4:8"),
    *("queue 1:13", "queue 2:12", "queue 1:16", "queue 8:16", "queue 1:27", "queue 4:24"),
]
"""PROTOCOL LEARNERS:ACTORS of the runs."""


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
    sizes = [f"n_envs={actors}", "agent.horizon=1", f"total_steps={int(UPDATES * learners * made)}", f"concurrency.learners={learners}"]
    given = [*network, "agent.network.shared=true", "agent.normalize_advantage=false", f"log.every={EVERY}iterations"]
    return measured(case, train(learners + actors, *sleepy(STEP_MS), *mode, *sizes, *given))


def measured(case: str, records: list[Record]) -> dict[str, float]:
    """Return the rates and means of a run between its second record and its last but one."""
    _, learners, _ = parts(case)
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
    }


# Central inference ----------------------------------------------------------------------------------------------------

WIDTHS = {"10 k": 100, "1 M": 1000, "10 M": 3160}
"""Parameters -> units of each of two hidden layers."""
ACTORS, HORIZON, INFERENCE_STEP_MS = 4, 16, 8.0


def inference() -> dict[str, dict[str, float]]:
    """Return environment steps per second after a quarter of a run, of all modes and sizes."""
    found = {}
    for size, width in WIDTHS.items():
        for mode in ("async", "seed"):
            network = [f"agent.network.hidden=[{width},{width}]", "agent.network.shared=true", f"n_envs={ACTORS}"]
            sizes = [f"agent.horizon={HORIZON}", f"total_steps={16 * ACTORS * HORIZON}", "log.every=1iterations"]
            records = train(1 + ACTORS, *sleepy(INFERENCE_STEP_MS), f"concurrency={mode}", *network, *sizes)
            first, last = records[len(records) // 4], records[-2]
            found[f"{size} {mode}"] = {"steps_per_s": (last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"])}
    return found
