"""Measure the COVID-19 economy: simulation alone, and where the time of training goes, for several numbers of environments.

    python scripts/covid_speed.py [-o docs/figures/covid_speed.png] [--envs 1,10,60,250,1000] [--seconds 5] [--numpy]

Prints two tables in Markdown and draws the second. Rates are of environment steps (52 actors each); "by CPU time" is what the same
work would reach if nothing else ran on the machine: steps over the CPU time of this process (of the simulation: of its best piece), times
the threads. Simulation alone draws a
random allowed action for every actor. `--numpy` compares it to the vectorised NumPy implementation of the tests (from a checkout).
The figure needs matplotlib: pip install "warprun[plot]".
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from warprun.build import fuse, make_agent, make_engine
from warprun.build import threads as threads_of
from warprun.compose import compose
from warprun.engine.device import choose
from warprun.engine.engine import Engine

ROOT = Path(__file__).parents[1]
ROWS = 9
"""Steps of a rollout where nothing learns."""


class Spent(NamedTuple):
    """Seconds, of the wall's clock and of this process on all processors."""

    wall: float
    cpu: float


def spent(work: Callable[[], object]) -> Spent:
    """Return what `work` takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def total(pieces: list[Spent]) -> Spent:
    """Return the sum."""
    return Spent(sum(p.wall for p in pieces), sum(p.cpu for p in pieces))


def least_cpu(pieces: list[Spent]) -> float:
    """Return the CPU seconds of the piece that was disturbed least: other programs take caches and memory bandwidth, too."""
    return min(p.cpu for p in pieces)


def repeated(work: Callable[[], object], seconds: float) -> list[Spent]:
    """Do `work` once for what happens only once, then measure it until `seconds` have gone."""
    work()
    pieces = [spent(work)]
    while total(pieces).wall < seconds:
        pieces.append(spent(work))
    return pieces


def simulation(n_envs: int, seconds: float) -> tuple[float, float]:
    """Return environment steps per second of the simulation alone: by the wall's clock, by CPU time."""
    config = compose(["env=covid", f"n_envs={n_envs}", "log.live=false"])
    device, threads = choose(config.device), threads_of(config)
    explore = {name: torch.ones(1, device=device.torch) for name in ("governors", "planner")}
    engine: Engine = make_engine(config, device, n_envs, ROWS, 0, exploration=explore)
    engine.reset()

    def nothing(trajectory: Any, row: int) -> None:
        for group in trajectory.groups.values():
            group.policy_output.zero_()

    pieces = repeated(lambda: engine.collect(nothing), seconds)
    steps = n_envs * ROWS
    return steps * len(pieces) / total(pieces).wall, steps / least_cpu(pieces) * threads


def numpy_simulation(n_envs: int) -> float:
    """Return environment steps per second of the NumPy implementation, by CPU time on all threads."""
    sys.path.insert(0, str(ROOT))
    from tests.envs.covid_reference import Covid

    world, draw = Covid(n_envs), np.random.default_rng(0)

    def days() -> None:
        for _ in range(3):
            if world.t == world.length:
                world.reset()
            allowed, _ = world.masks()
            world.step(np.where(allowed[..., 1], draw.integers(0, 11, (n_envs, 51)), 0), draw.integers(0, 21, n_envs))
            world.observe()

    pieces = repeated(days, 1.0)
    return 3 * n_envs / least_cpu(pieces)


class Split(NamedTuple):
    """Seconds for 1,000 environment steps of training."""

    n_envs: int
    rollout: float
    transfer: float
    training: float
    cpu: float
    """Of both, on all processors."""


def training(n_envs: int, seconds: float) -> tuple[Split, int]:
    """Return where the time of training with the tuned settings goes, and the threads."""
    config = compose(["env=covid", f"n_envs={n_envs}", "log.live=false"])
    # A rollout of 1,000 environments and 90 days would take 2 GB and a minute.
    config = replace(config, agent=replace(config.agent, horizon=90 if n_envs <= 60 else 18))
    device = choose(config.device)
    agent = make_agent(config, device)
    engine: Engine = make_engine(config, device, n_envs, config.agent.horizon, 0)
    fuse(config, engine, agent)
    engine.compile()
    rollouts: list[Spent] = []
    updates: list[Spent] = []

    def iteration() -> None:
        rollouts.append(spent(lambda: engine.collect(agent.act)))
        updates.append(spent(lambda: agent.update(engine.trajectory, 0.0)))

    count = len(repeated(iteration, seconds))
    rolled, learned = total(rollouts[-count:]), total(updates[-count:])
    thousands = n_envs * config.agent.horizon * count / 1000
    # Kernels write and torch reads the same memory: there is nothing to transfer.
    split = Split(n_envs, rolled.wall / thousands, 0.0, learned.wall / thousands, (rolled.cpu + learned.cpu) / thousands)
    return split, threads_of(config)


def gemm_rate() -> float:
    """Return the multiply-adds x 2 per second that torch reaches on one thread for a layer of 256 and a batch of 4,096."""
    a, b = torch.randn(4096, 256), torch.randn(256, 256)
    out = torch.empty(4096, 256)
    pieces = repeated(lambda: torch.mm(a, b, out=out), 1.0)
    return 2 * 4096 * 256 * 256 / least_cpu(pieces)


def flops_per_step() -> float:
    """Return the operations of both networks for an environment step: forward to act; forward, and twice that backward, to learn."""
    governor = 64 * 256 + 256 * 256 + 256 * (11 + 1)
    planner = 463 * 256 + 256 * 256 + 256 * (21 + 1)
    return 2.0 * (51 * governor + planner) * (1 + 3)


def draw(splits: list[Split], threads: int, file: Path) -> None:
    """Draw seconds for 1,000 environment steps, by part, and their rate."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (bars, rates) = pyplot.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    names, places = [f"{s.n_envs:,}" for s in splits], range(len(splits))
    bars.bar(places, [s.rollout for s in splits], color="#0072b2", label="rollout")
    bars.bar(places, [s.transfer for s in splits], bottom=[s.rollout for s in splits], color="#009e73", label="data transfer (none)")
    bars.bar(places, [s.training for s in splits], bottom=[s.rollout + s.transfer for s in splits], color="#e69f00", label="training")
    bars.set_xticks(places, names)
    bars.set_xlabel("environments")
    bars.set_ylabel("seconds for 1,000 environment steps")
    bars.legend(frameon=False)
    counts = [s.n_envs for s in splits]
    rates.loglog(counts, [1000 / s.cpu * threads for s in splits], "o-", color="#444444", label="by CPU time")
    rates.loglog(
        counts, [1000 / (s.rollout + s.transfer + s.training) for s in splits], "o--", color="#999999", label="by the wall's clock"
    )
    rates.legend(frameon=False)
    rates.set_xlabel("environments")
    rates.set_ylabel("environment steps per second, training")
    rates.grid(alpha=0.2, which="both")
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
    torch.set_num_threads(1)  # as in a run: kernels bring their own threads, and torch's would spin beside them
    print("| environments | simulation alone, env steps/s | by CPU time |\n|---|---|---|")
    for n in counts:
        wall, cpu = simulation(n, chosen.seconds)
        print(f"| {n:,} | {wall:,.0f} | {cpu:,.0f} |", flush=True)
    if chosen.numpy:
        for n in (1, counts[-1]):
            print(f"\nNumPy, vectorised over {n:,} x 51 states: {numpy_simulation(n):,.0f} env steps/s on one thread", flush=True)
    print("\n| environments | rollout, s | transfer, s | training, s | env steps/s | by CPU time | of the GEMM rate |")
    print("|---|---|---|---|---|---|---|")
    splits, rate = [], gemm_rate()
    for n in counts:
        split, threads = training(n, chosen.seconds)
        by_cpu = 1000 / split.cpu * threads
        share = by_cpu * flops_per_step() / (threads * rate)
        parts = f"{split.rollout:.3f} | {split.transfer:.0f} | {split.training:.3f}"
        print(f"| {n:,} | {parts} | {1000 / (split.rollout + split.training):,.0f} | {by_cpu:,.0f} | {share:.0%} |", flush=True)
        splits.append(split)
    print(f"\nSeconds for 1,000 environment steps. GEMM: {rate / 1e9:.0f} GFLOP/s on one thread.")
    try:
        draw(splits, threads, chosen.out)
    except ImportError:
        print('no figure: matplotlib is missing; run: pip install "warprun[plot]"', file=sys.stderr)
        return 2
    print(chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
