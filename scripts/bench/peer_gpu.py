"""The throughput of learners in JAX on a GPU, a part of scripts/gpu_check.py: a line of JSON for each.

    python scripts/bench/peer_gpu.py cuda|cpu UNTIL

What would not end before UNTIL (seconds since 1970) does not begin, and a line says so. Needs jax, optax, gymnax, gymnasium and six."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import jax
import peer_jax
import peer_population
import peer_work as spec

GENERATOR = "unsafe_rbg"
SECONDS, ROUNDS = 0.3, 5
PREPARES_S = 10.0
"""Seconds in which XLA compiles a learner."""
AGENTS = 2_048
WORKS = {
    "a2c-64": ("A2C 64-64", "training"),
    "rollout-64": ("A2C 64-64", "rollout"),
    "ppo-64": ("PPO 4 x 4, 64-64", "training"),
    "lstm-16": ("PPO 4 x 4, LSTM", "training"),
}
"""Work -> its name in the table, and what it is."""
SIZES = (10_000, 100_000, 1_000_000)
POPULATION = "population"


def prepared(work: str, n_envs: int) -> spec.Iterate:
    """Return a compiled iteration."""
    if work == POPULATION:
        return peer_population.prepare(spec.WORKS[POPULATION], GENERATOR, AGENTS, 1, (AGENTS,))[0]
    return peer_jax.prepare(spec.WORKS[work], GENERATOR, n_envs, 1)[0]


def rows(until: float) -> Iterator[dict[str, Any]]:
    """Yield what is measured, the small sizes of every work first, then a population."""
    rates: dict[str, float] = {}
    works = [(work, n_envs, *shown) for n_envs in SIZES for work, shown in WORKS.items() if work != "lstm-16" or n_envs == SIZES[0]]
    for work, n_envs, name, kind in (*works, (POPULATION, AGENTS * spec.AGENT_ENVS, f"{AGENTS:,} agents, PPO 4 x 4, 64-64", "training")):
        steps = n_envs * (spec.AGENT_HORIZON if work == POPULATION else spec.HORIZON)
        needs = PREPARES_S + (2 + ROUNDS) * steps / rates.get("ppo-64" if work == POPULATION else work, 1e12)
        if time.time() + needs > until:
            yield {"cut": f"{name} in JAX, {n_envs:,} environments and more: no time is left (--minutes)"}
            return
        iterate = prepared(work, n_envs)
        iterate(), iterate()  # the first call compiles, the second allocates
        found = [spec.rate(iterate, SECONDS) for _ in range(ROUNDS)]
        every = [each["steps"] / each["wall_s"] for each in found]
        rates[work] = median(every)
        yield {"work": name, "n_envs": n_envs, f"{kind}_steps_per_s": rates[work], f"{kind}_rounds": every}


def main(device: str, until: str) -> None:
    """Print a line for every measurement."""
    if device == "cuda" and jax.default_backend() != "gpu":
        print(json.dumps({"cut": f"JAX {jax.__version__} finds no GPU: pip install 'jax[cuda12]' or 'jax[cuda13]'"}))
        return
    for row in rows(float(until)):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
