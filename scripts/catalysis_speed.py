"""Measure catalysis on CPU: simulation alone, and training with the published 50-50 network.

    python scripts/catalysis_speed.py [--scenario er1] [--envs 2000] [--seconds 5] [--threads 2]

Prints a table in Markdown. Simulation alone uses random actions that were drawn before. "By CPU time" estimates the speed on an idle
machine: steps divided by the smallest CPU time of a call, times the number of threads.
"""

import argparse
import time
from collections.abc import Callable

import torch

from warprun.config.compose import compose
from warprun.runtime.build import make_agent, make_engine, make_training_simulator, set_up

HORIZON = 64


def rates(work: Callable[[], object], steps: int, seconds: float, threads: int) -> tuple[float, float]:
    """Return the steps per second of `work`, which makes `steps`, by wall time and by CPU time."""
    work()
    wall, count, least = time.perf_counter(), 0, float("inf")
    while time.perf_counter() - wall < seconds:
        before = time.process_time()
        work()
        least = min(least, time.process_time() - before)
        count += 1
    return steps * count / (time.perf_counter() - wall), steps / least * threads


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="er1")
    parser.add_argument("--envs", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    config = compose(
        [
            *("experiment=catalysis_published", f"env.scenario={chosen.scenario}", f"n_envs={chosen.envs}"),
            *(f"agent.horizon={HORIZON}", f"concurrency.threads={chosen.threads}"),
        ]
    )
    setup, steps = set_up(config), chosen.envs * HORIZON
    engine = make_engine(setup, chosen.envs, HORIZON, 0)
    action = engine.trajectory.groups["agent"].action
    action.copy_(torch.randint(0, 6, action.shape, generator=torch.Generator().manual_seed(0)))
    engine.reset()
    alone = rates(engine.retrace, steps, chosen.seconds, chosen.threads)
    agent = make_agent(setup)
    simulator = make_training_simulator(setup, agent)
    simulator.prepare()
    rolled = rates(lambda: simulator.collect(agent.act), steps, chosen.seconds, chosen.threads)

    def iteration() -> None:
        agent.update(simulator.collect(agent.act), 0.0)

    trained = rates(iteration, steps, chosen.seconds, chosen.threads)
    print(f"{chosen.scenario}, {chosen.envs:,} environments, {chosen.threads} threads, {setup.plan}")
    print("| what | million steps/s, wall | million steps/s, by CPU time |\n|---|---|---|")
    for name, (wall, cpu) in {"simulation alone": alone, "with the policy": rolled, "with training": trained}.items():
        print(f"| {name} | {wall / 1e6:.2f} | {cpu / 1e6:.2f} |")


if __name__ == "__main__":
    main()
