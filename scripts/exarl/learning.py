"""Learning runs: short trainings of CartPole by eight actors, several seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from exarl.launch import Record, Run, train

ACTORS = 8
V0 = ["env=cartpole", "env.time_limit=200", "agent=a2c", f"n_envs={ACTORS}", "agent.horizon=100", "agent.learning_rate=1e-3"]
"""CartPole-v0 is CartPole with episodes of 200 steps. One environment for each actor."""
EPISODES, LAST = 1000, 100
V0_STEPS = EPISODES * 200
MANY = ["env=cartpole", "agent=a2c", f"n_envs={16 * ACTORS}", "agent.horizon=16", "agent.learning_rate=3e-3", "agent.advantage=vtrace"]
MANY_STEPS, WINDOW_STEPS = 300_000, 3_000_000
"""Of claims 7 and 9; for 9 actors do not wait for learners, so these learn from a part of the rollouts only."""


class Kind(NamedTuple):
    """Runs that differ in the seed only."""

    claim: int
    learners: int
    overrides: tuple[str, ...]
    seeds: int


def lasting(steps: int) -> tuple[str, str]:
    """Return the settings of a run of `steps` environment steps with 20 records."""
    return f"total_steps={steps}", f"log.every={steps // 20}steps"


def _kinds() -> dict[str, Kind]:
    found = {}
    for label, advantage in (("plain", "gae"), ("exarl_vtrace", "exarl_vtrace"), ("vtrace", "vtrace")):
        given = (*V0, f"agent.advantage={advantage}", "concurrency=async", f"total_steps={V0_STEPS}", "log.every=1iterations")
        found[f"12 {label}"] = Kind(12, 1, given, 6)
    for learners in (1, 2, 4, 8):
        found[f"7 L={learners}"] = Kind(7, learners, (*MANY, *lasting(MANY_STEPS), "concurrency=async"), 5)
    for window in ("range", "random"):
        found[f"9 {window}"] = Kind(9, 4, (*MANY, *lasting(WINDOW_STEPS), "concurrency=rma", f"concurrency.window={window}"), 5)
    return found


KINDS = _kinds()


def curve(kind: Kind, records: list[Record]) -> dict[str, object]:
    """Return [env_steps, mean return of training episodes] of each record, or for claim 12 means of 50 episodes each and of the last."""
    ended = [(r["env_steps"], r["train/episodes"], r["train/return"]) for r in records if r.get("train/episodes")]
    lag = statistics.mean(record["actors/lag_mean"] for record in records)
    found: dict[str, object] = {"lag": lag, "wall_s": records[-1]["wall_s"]}
    if kind.claim != 12:
        return found | {"curve": [[steps, round(mean, 2)] for steps, _, mean in ended]}
    means = [mean for _, count, mean in ended for _ in range(int(count))][:EPISODES]
    tens = [round(statistics.mean(means[n : n + 50]), 2) for n in range(0, len(means), 50)]
    return found | {"episodes": len(means), "last": statistics.mean(means[-LAST:]), "fifties": tens}


def measure(name: str, seeds: list[int]) -> Iterator[tuple[str, int, dict[str, object]]]:
    """Train, and yield (kind, seed, what was learned) of each run."""
    kind = KINDS[name]
    given = (*kind.overrides, f"concurrency.learners={kind.learners}")
    runs = {Run(kind.learners + ACTORS, (*given, f"seed={seed}")): seed for seed in seeds}
    for run, records in train(list(runs)):
        yield name, runs[run], curve(kind, records)
