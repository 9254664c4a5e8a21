"""The speed of the COVID-19 economy, which `python scripts/reproduce.py --only covid_speed` measures.

Rates are environment steps (52 actors each) per second of wall time. Simulation alone draws a random allowed action for every actor and
simulates the day, without learning. It is compared with the vectorized NumPy implementation of the tests (needs a checkout).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from common import ROOT, rate, training_of

from warprun.config.compose import compose
from warprun.runs.build import make_engine, set_up
from warprun.simulation.exploration import Exploration

ROWS = 9
"""Steps of a rollout without learning."""


def warm(work: Callable[[], int], seconds: float) -> float:
    """Return how much `work` does per second after its first two calls."""
    work()
    work()
    return rate(work, seconds)


def simulation(n_envs: int, seconds: float, *overrides: str) -> float:
    """Return environment steps per second of the simulation alone, with further settings of a run."""
    setup = set_up(compose(["env=covid", "agent=a2c", f"n_envs={n_envs}", f"agent.horizon={ROWS}", "log.live=false", *overrides]))
    numbers = {name: torch.ones(1, device=setup.device.torch) for name in ("governors", "planner")}
    engine = make_engine(setup, n_envs, ROWS, 0, exploration=Exploration("explored", numbers))
    engine.reset()
    for group in engine.trajectory.groups.values():
        group.policy_output.zero_()  # stands in for a policy

    def days() -> int:
        for day in range(ROWS):
            engine.sample(day)
            engine.step(day)
        engine.carry_over()
        return n_envs * ROWS

    return warm(days, seconds)


def numpy_simulation(n_envs: int) -> float:
    """Return environment steps per second of the NumPy implementation, which uses one thread."""
    sys.path.insert(0, str(ROOT))
    from tests.envs.covid_reference import Covid

    world, draw = Covid(n_envs), np.random.default_rng(0)

    def day() -> int:
        if world.t == world.length:
            world.reset()
        allowed, _ = world.masks()
        world.step(np.where(allowed[..., 1], draw.integers(0, 11, (n_envs, 51)), 0), draw.integers(0, 21, n_envs))
        world.observe()
        return n_envs

    return warm(day, 3.0)


def training(n_envs: int, seconds: float) -> float:
    """Return environment steps per second of training both 256-256 policies with two threads, one epoch as in the published run."""
    torch.set_num_threads(1)  # as in a run: kernels have their own threads, and torch's would compete with them
    # A rollout of 1,000 environments and 90 days would take 2 GB and a minute.
    given = ("concurrency.threads=2", "agent.epochs=1", f"agent.horizon={90 if n_envs <= 60 else 18}")
    return warm(training_of("env=covid", "device=cpu", f"n_envs={n_envs}", *given).iterate, seconds)


def speeds() -> dict[str, float]:
    """Return environment steps per second, all on one thread unless the name says otherwise."""
    found = {f"kernels {n}": simulation(n, 3.0, "concurrency.threads=1") for n in (1, 60, 1000)}
    found |= {f"numpy {n}": numpy_simulation(n) for n in (1, 60, 1000)}
    found["kernels 1000, two threads"] = simulation(1000, 3.0, "concurrency.threads=2")
    found |= {f"training {n}, two threads": training(n, 4.0) for n in (60, 1000)}
    return {name: round(speed, 1) for name, speed in found.items()}
