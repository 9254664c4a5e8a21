"""Measure the speed of the COVID-19 economy: simulation alone, and the parts of training, for several numbers of environments.

    python scripts/covid_speed.py [-o docs/figures/covid_speed.png] [--envs 1,10,60,250,1000] [--seconds 5] [--numpy]

Prints tables in Markdown and draws the last one. Rates are environment steps (52 actors each) per second of wall time, medians of rounds.
Simulation alone draws a random allowed action for every actor and simulates the day, without learning. `--numpy` compares it with the
vectorised NumPy implementation of the tests (needs a checkout). The figure needs matplotlib: pip install matplotlib.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from warprun.config.compose import compose
from warprun.runs.build import make_agent, make_engine, make_training_simulator, set_up
from warprun.runs.build import threads as threads_of
from warprun.simulation.exploration import Exploration
from warprun.simulation.kernel_engine import KernelEngine

ROOT = Path(__file__).parents[1]
ROWS = 9
"""Steps of a rollout without learning."""


def rounds(work: Callable[[], float], seconds: float) -> list[float]:
    """Call `work` once to warm up, then until `seconds` have passed; return the durations that it returns."""
    work()
    found, began = [work()], time.perf_counter()
    while time.perf_counter() - began < seconds:
        found.append(work())
    return found


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def simulation(n_envs: int, seconds: float) -> float:
    """Return environment steps per second of the simulation alone."""
    config = compose(["env=covid", f"n_envs={n_envs}", "log.live=false"])
    setup = set_up(config)
    numbers = {name: torch.ones(1, device=setup.device.torch) for name in ("governors", "planner")}
    engine: KernelEngine = make_engine(setup, n_envs, ROWS, 0, exploration=Exploration("explored", numbers))
    engine.reset()

    def days() -> float:
        counted = 0.0
        for row in range(ROWS):
            for group in engine.trajectory.groups.values():
                group.policy_output.zero_()  # stands in for a policy, so it is not timed
            counted += timed(lambda row=row: (engine.sample(row), engine.step(row)))  # type: ignore[misc]
        engine.carry_over()
        return counted

    return n_envs * ROWS / statistics.median(rounds(days, seconds))


def numpy_simulation(n_envs: int) -> float:
    """Return environment steps per second of the NumPy implementation, which uses one thread."""
    sys.path.insert(0, str(ROOT))
    from tests.envs.covid_reference import Covid

    world, draw = Covid(n_envs), np.random.default_rng(0)

    def day() -> None:
        if world.t == world.length:
            world.reset()
        allowed, _ = world.masks()
        world.step(np.where(allowed[..., 1], draw.integers(0, 11, (n_envs, 51)), 0), draw.integers(0, 21, n_envs))
        world.observe()

    return n_envs / statistics.median(rounds(lambda: timed(day), 3.0))


class Split(NamedTuple):
    """Seconds for 1,000 environment steps of training."""

    n_envs: int
    rollout: float
    transfer: float
    training: float

    @property
    def rate(self) -> float:
        """Environment steps per second."""
        return 1000 / (self.rollout + self.transfer + self.training)


def training(n_envs: int, seconds: float) -> tuple[Split, int]:
    """Return the parts of the training time, and the number of threads."""
    config = compose(["env=covid", f"n_envs={n_envs}", "log.live=false"])
    # One epoch, as in the published run. A rollout of 1,000 environments and 90 days would take 2 GB and a minute.
    config = replace(config, agent=replace(config.agent, epochs=1, horizon=90 if n_envs <= 60 else 18))
    setup = set_up(config)
    agent = make_agent(setup)
    engine = make_training_simulator(setup, agent)
    engine.prepare()
    rollouts: list[float] = []
    updates: list[float] = []

    def iteration() -> float:
        rollouts.append(timed(lambda: engine.collect(agent.act)))
        updates.append(timed(lambda: agent.update(engine.trajectory, 0.0)))
        return rollouts[-1] + updates[-1]

    count = len(rounds(iteration, seconds))
    thousands = n_envs * config.agent.horizon / 1000
    # Kernels and torch share memory, so nothing is transferred.
    rolled, learned = (statistics.median(spent[-count:]) / thousands for spent in (rollouts, updates))
    return Split(n_envs, rolled, 0.0, learned), threads_of(config)


def gemm_rate() -> float:
    """Return the multiply-adds x 2 per second that torch reaches on one thread for a layer of 256 and a batch of 4,096."""
    a, b = torch.randn(4096, 256), torch.randn(256, 256)
    out = torch.empty(4096, 256)
    return 2 * 4096 * 256 * 256 / min(rounds(lambda: timed(lambda: torch.mm(a, b, out=out)), 1.0))


def flops_per_step() -> float:
    """Return the floating-point operations of both networks per environment step: forward to act, forward and backward to learn."""
    governor = 64 * 256 + 256 * 256 + 256 * (11 + 1)
    planner = 463 * 256 + 256 * 256 + 256 * (21 + 1)
    return 2.0 * (51 * governor + planner) * (1 + 3)


def draw(splits: list[Split], file: Path) -> None:
    """Draw the parts of the time of 1,000 steps, and its growth with the number of environments."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (bars, growth) = pyplot.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    parts = (("rollout", "#0072b2"), ("transfer", "#009e73"), ("training", "#e69f00"))
    names, places, below = [f"{s.n_envs:,}" for s in splits], range(len(splits)), np.zeros(len(splits))
    for part, color in parts:
        heights = np.array([getattr(s, part) for s in splits])
        bars.bar(places, heights, bottom=below, color=color, label="data transfer (none)" if part == "transfer" else part)
        below += heights
    bars.set_xticks(places, names)
    bars.set_xlabel("environments")
    bars.set_ylabel("seconds for 1,000 environment steps")
    bars.legend(frameon=False)
    counts = np.array([s.n_envs for s in splits])
    for part, color in (parts[0], parts[2]):
        growth.loglog(counts, counts * [getattr(s, part) for s in splits], "o-", color=color, label=part)
    last = splits[-1]
    growth.loglog(counts, counts * (last.rollout + last.training), ":", color="0.5", label="in proportion")
    growth.loglog(counts, counts * [s.rollout + s.training for s in splits], "o-", color="#444444", label="both")
    growth.set_xlabel("environments")
    growth.set_ylabel("seconds for 1,000 days of all environments")
    growth.grid(alpha=0.2, which="both")
    growth.legend(frameon=False)
    figure.savefig(file, dpi=150)


def main() -> int:
    """Print the tables and draw the figure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=Path("covid_speed.png"))
    parser.add_argument("--envs", default="1,10,60,250,1000")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--numpy", action="store_true")
    chosen = parser.parse_args()
    counts = [int(n) for n in chosen.envs.split(",")]
    torch.set_num_threads(1)  # as in a run: kernels have their own threads, and torch's would compete with them
    print("| environments | simulation alone, env steps/s |\n|---|---|")
    for n in counts:
        print(f"| {n:,} | {simulation(n, chosen.seconds):,.0f} |", flush=True)
    if chosen.numpy:
        for n in (1, counts[-1]):
            print(f"\nNumPy, vectorised over {n:,} x 51 states: {numpy_simulation(n):,.0f} env steps/s on one thread", flush=True)
    print("\n| environments | rollout, s | transfer, s | training, s | env steps/s | of the GEMM rate |\n|---|---|---|---|---|---|")
    splits, rate = [], gemm_rate()
    for n in counts:
        split, threads = training(n, chosen.seconds)
        share = split.rate * flops_per_step() / (threads * rate)
        parts = f"{split.rollout:.3f} | {split.transfer:.0f} | {split.training:.3f}"
        print(f"| {n:,} | {parts} | {split.rate:,.0f} | {share:.0%} |", flush=True)
        splits.append(split)
    print(f"\nSeconds for 1,000 environment steps. GEMM: {rate / 1e9:.0f} GFLOP/s on one thread.")
    try:
        draw(splits, chosen.out)
    except ImportError:
        print("no figure: matplotlib is missing; run: pip install matplotlib", file=sys.stderr)
        return 2
    print(chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
