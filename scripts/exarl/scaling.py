"""Runs whose environment and learner sleep for a set time, and what the model says of them."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from exarl.launch import HERE, Record, Run, ranks, train
from exarl.model import Outcome, Times, simulate

TRAIN_MS, STEP_MS = 160.0, 32.0
"""The published 8 ms and 1.6 ms, times 20: what warprun itself does is then small beside them on a laptop, too."""
UPDATES, EVERY = 80, 10
"""Updates of a run, and between two records."""
ONE_LEARNER = [f"{mode} 1:{actors}" for actors in (1, 2, 4, 8) for mode in ("async", "queue")]
SEVERAL = ["async 2:8", "async 4:8", "async 8:8", "range 4:8", "random 4:8", "queue 1:13", "queue 2:12", "queue 1:16", "queue 8:16"]
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


def job(case: str) -> Run:
    """Return the run of a case."""
    protocol, learners, actors = parts(case)
    made = 1 if protocol in ("async", "queue") else actors * TRAIN_MS / STEP_MS / learners  # per rollout that is learned from
    mode = ["concurrency=async"] if protocol == "async" else ["concurrency=rma", f"concurrency.window={protocol}"]
    network = ["agent.network.module=./sleepy.py:SleepyNetwork", f"agent.network.kwargs.train_ms={TRAIN_MS}", "agent.network.shared=true"]
    sizes = [f"n_envs={actors}", "agent.horizon=1", f"total_steps={int(UPDATES * learners * made)}", f"concurrency.learners={learners}"]
    agent = ["agent=a2c", "agent.normalize_advantage=false", f"log.every={EVERY}iterations"]
    return Run(learners + actors, ("env=sleepy", *agent, *network, *sizes, *mode))


def measured(case: str, records: list[Record]) -> dict[str, float]:
    """Return what a run did between its second record and its last but one."""
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


def measure(cases: list[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """Run the cases, and yield what each did."""
    names = {job(case): case for case in cases}
    for run, records in train(list(names), SLEEPY_STEP_MS=str(STEP_MS)):
        yield names[run], measured(names[run], records)


def exchange() -> dict[str, float]:
    """Return the seconds of push, pop, show, read and message between two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, float] = json.loads(ranks(2, [str(HERE / "exchange_times.py")], Path(folder)))
        return found


def times(exchanged: dict[str, float], runs: dict[str, dict[str, float]], scale: float = 1.0) -> Times:
    """Return the times of the model, from one learner with one actor and two with two; `scale` divides the sleeps only."""
    period, act = 1.0 / runs[FITTED[0]]["rate"], runs[FITTED[0]]["act_s"]
    average = max(0.0, 2.0 / runs[AVERAGING]["rate"] - period)
    train = period - exchanged["show"] - exchanged["pop"] - TRAIN_MS / 1e3
    own_s = max(0.0, act - STEP_MS / 1e3)
    return Times(train=max(0.0, train) + TRAIN_MS / 1e3 / scale, act=own_s + STEP_MS / 1e3 / scale, average=average, **exchanged)


def predicted(case: str, given: Times, rollouts: int = 0) -> Outcome:
    """Return what the model says of a case."""
    protocol, learners, actors = parts(case)
    return simulate(protocol, learners, actors, given, rollouts or UPDATES * learners)
