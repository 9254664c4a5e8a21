"""The throughput of learners in JAX on a GPU, a part of scripts/gpu_check.py: a line of JSON for each.

    python scripts/bench/peer_gpu.py cuda|cpu UNTIL

What would not end before UNTIL (seconds since 1970) does not begin, and a line says so. Needs jax, optax and gymnax."""

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
WORKS = {"A2C 64-64": ("a2c-64", "training"), "A2C 64-64, rollouts": ("rollout-64", "rollout"), "PPO 4 x 4, 64-64": ("ppo-64", "training")}
"""Name in the table -> work, and what it is."""
SIZES = (10_000, 100_000, 1_000_000)


def measured(iterate: spec.Iterate) -> tuple[float, list[float]]:
    """Return the median rate, steps/s, and that of every round."""
    iterate(), iterate()
    found = [spec.rate(iterate, SECONDS) for _ in range(ROUNDS)]
    rates = [each["steps"] / each["wall_s"] for each in found]
    return median(rates), rates


def rows(until: float) -> Iterator[dict[str, Any]]:
    """Yield what is measured, the small sizes of every work first, then a population."""
    rate: dict[str, float] = {}
    for n_envs in SIZES:
        for name, (work, kind) in WORKS.items():
            needs = PREPARES_S + (2 + ROUNDS) * n_envs * spec.HORIZON / rate.get(name, 1e12)
            if time.time() + needs > until:
                yield {"cut": f"{name}, {n_envs:,} environments and more: no time is left (--minutes)"}
                return
            iterate, _ = peer_jax.prepare(spec.WORKS[work], GENERATOR, n_envs, 1)
            rate[name], every = measured(iterate)
            yield {"work": name.removesuffix(", rollouts"), "n_envs": n_envs, f"{kind}_steps_per_s": rate[name], f"{kind}_rounds": every}
    steps = AGENTS * peer_population.STEPS
    if time.time() + 2 * PREPARES_S + (2 + ROUNDS) * steps / rate["PPO 4 x 4, 64-64"] > until:
        yield {"cut": f"a population of {AGENTS:,}: no time is left (--minutes)"}
        return
    population = spec.POPULATION
    states = peer_population.mapped(lambda key: peer_jax.first_state(key, population, spec.AGENT_ENVS))(peer_population.keys(AGENTS, 0))
    run = peer_population.mapped(lambda state: peer_jax.iteration(state, population), donate_argnums=0)

    def iterate() -> int:
        nonlocal states
        states = jax.block_until_ready(run(states))
        return steps

    own, every = measured(iterate)
    name = f"{AGENTS:,} agents, PPO 4 x 4, 64-64"
    yield {"work": name, "n_envs": AGENTS * spec.AGENT_ENVS, "training_steps_per_s": own, "training_rounds": every}


def main(device: str, until: str) -> None:
    """Print a line for every measurement."""
    if device == "cuda" and jax.default_backend() != "gpu":
        print(json.dumps({"cut": f"JAX {jax.__version__} finds no GPU: pip install 'jax[cuda12]' or 'jax[cuda13]'"}))
        return
    jax.config.update("jax_default_prng_impl", GENERATOR)
    for row in rows(float(until)):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
