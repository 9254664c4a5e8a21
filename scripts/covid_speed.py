"""Measure the speed of the COVID-19 economy for several numbers of environments: simulation, and parts of training.

    python scripts/covid_speed.py [--out docs/figures/covid_speed.png] [--envs 1 10 60 250 1000] [--seconds 5] [--numpy]

Prints tables in Markdown and draws the last one. Rates are environment steps (52 actors each) per second of wall time.
Simulation alone draws a random allowed action for every actor and simulates the day, without learning. `--numpy`
compares it with the vectorised NumPy implementation of the tests (needs a checkout). The figure needs matplotlib: pip
install matplotlib.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from common import ROOT, Training, figure, head, rate, row, settings

from warprun.config.compose import compose
from warprun.runs.build import make_engine, set_up, threads
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


class Split(NamedTuple):
    """Seconds for 1,000 environment steps of training. Kernels and torch share memory, so nothing is transferred."""

    n_envs: int
    rollout: float
    training: float


def split(n_envs: int, seconds: float) -> tuple[Split, int]:
    """Return the parts of the training time, and the number of threads."""
    # One epoch, as in the published run. A rollout of 1,000 environments and 90 days would take 2 GB and a minute.
    run = Training("env=covid", "device=cpu", f"n_envs={n_envs}", "agent.epochs=1", f"agent.horizon={90 if n_envs <= 60 else 18}")
    both = warm(run.iterate, seconds)
    rollout = warm(run.rollout, seconds / 2)
    return Split(n_envs, 1000 / rollout, 1000 / both - 1000 / rollout), threads(run.config)


def flops_per_step() -> float:
    """Return the operations of both networks per environment step: forward to act, forward and backward to learn."""
    governor = 64 * 256 + 256 * 256 + 256 * (11 + 1)
    planner = 463 * 256 + 256 * 256 + 256 * (21 + 1)
    return 2.0 * (51 * governor + planner) * (1 + 3)


def draw(splits: list[Split], file: Path) -> None:
    """Draw the parts of the time of 1,000 steps, and its growth with the number of environments."""
    counts = np.array([s.n_envs for s in splits])
    parts = {name: np.array([getattr(s, name) for s in splits]) for name in ("rollout", "training")}
    with figure(file, 2, (8.4, 3.4)) as (bars, growth):
        names = [f"{n:,}" for n in counts]
        bars.bar(names, parts["rollout"], color="#0072b2", label="rollout")
        bars.bar(names, parts["training"], bottom=parts["rollout"], color="#e69f00", label="training")
        bars.set(xlabel="environments", ylabel="seconds for 1,000 environment steps")
        both = counts * sum(parts.values())
        for name, color in (("rollout", "#0072b2"), ("training", "#e69f00")):
            growth.loglog(counts, counts * parts[name], "o-", color=color, label=name)
        growth.loglog(counts, both, "o-", color="#444444", label="both")
        growth.loglog(counts, both[-1] / counts[-1] * counts, ":", color="0.5", label="in proportion")
        growth.set(xlabel="environments", ylabel="seconds for 1,000 days of all environments")


def main() -> None:
    """Print the tables and draw the figure."""
    chosen = settings(__doc__, out="covid_speed.png", envs=[1, 10, 60, 250, 1000], seconds=5.0, numpy=False)
    torch.set_num_threads(1)  # as in a run: kernels have their own threads, and torch's would compete with them
    print(head("environments", "simulation alone, env steps/s"))
    for n in chosen.envs:
        print(row(f"{n:,}", f"{simulation(n, chosen.seconds):,.0f}"), flush=True)
    for n in (1, chosen.envs[-1]) if chosen.numpy else ():
        print(
            f"\nNumPy, vectorised over {n:,} x 51 states: {numpy_simulation(n):,.0f} env steps/s on one thread",
            flush=True,
        )
    a, b, out = torch.randn(4096, 256), torch.randn(256, 256), torch.empty(4096, 256)
    gemm = max(warm(lambda: torch.mm(a, b, out=out).shape[0] * 2 * 256 * 256, 0.3) for _ in range(3))
    print("\n" + head("environments", "rollout, s", "transfer, s", "training, s", "env steps/s", "of the GEMM rate"))
    splits = []
    for n in chosen.envs:
        found, count = split(n, chosen.seconds)
        speed = 1000 / (found.rollout + found.training)
        share = f"{speed * flops_per_step() / (count * gemm):.0%}"
        print(row(f"{n:,}", f"{found.rollout:.3f}", 0, f"{found.training:.3f}", f"{speed:,.0f}", share), flush=True)
        splits.append(found)
    print(f"\nSeconds for 1,000 environment steps. GEMM: {gemm / 1e9:.0f} GFLOP/s on one thread.")
    draw(splits, Path(chosen.out))


if __name__ == "__main__":
    main()
