"""What scripts/reproduce.py measures of speeds: each function without arguments is a round. `limit` needs gcc, `covid` a checkout."""

from __future__ import annotations

import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing

import numpy as np
import torch
from campaign import Values
from common import ROOT, rate, training_of
from exarl import runs as ranks

from warprun.config.compose import compose
from warprun.runs.bench import bench
from warprun.runs.build import make_engine, set_up
from warprun.runs.evaluation import Evaluator
from warprun.simulation.exploration import Exploration

SIZES = (10, 100, 1000, 10_000)


def throughput() -> Values:
    """Return million steps per second of simulation, rollout and training with two threads."""
    plain = ["agent.normalize_obs=false", "agent.normalize_reward=false", "device=cpu"]
    settings_of = {
        "cartpole a2c": (["env=cartpole", "agent=a2c", *plain], SIZES),
        "acrobot a2c": (["env=acrobot", "agent=a2c", "tuned=none", "agent.horizon=16", *plain], SIZES),
        "cartpole ppo": (["env=cartpole", "agent=ppo", *plain], SIZES[-1:]),
        "catalysis a2c": (["experiment=catalysis_published", "env.scenario=er1", "agent.horizon=64", "device=cpu"], (2000,)),
    }
    found = {}
    for name, (overrides, sizes) in settings_of.items():
        for measured in bench([compose([*overrides, f"n_envs={size}"]) for size in sizes], (2,)):
            rates = (measured.simulation_steps_per_s, measured.rollout_steps_per_s, measured.training_steps_per_s)
            kinds = zip(("simulation", "rollout", "training"), rates, strict=True)
            found[f"{name} {measured.n_envs}"] = {kind: round((rate or math.nan) / 1e6, 4) for kind, rate in kinds}
    return found


def exchange() -> Values:
    """Return million steps per second of an actor and a learner, of rollouts and of updates alone, and the share of the slower of these."""
    cartpoles = ("env=cartpole", "agent=a2c", "agent.advantage=vtrace", "agent.horizon=16", "n_envs=10000")
    (found,) = bench([compose([*cartpoles, "tuned=none", "device=cpu"])], (1,))
    rollouts, training = found.rollout_steps_per_s / 1e6, found.training_steps_per_s / 1e6
    updates = 1.0 / (1.0 / training - 1.0 / rollouts)
    rows = ranks.train(2, *cartpoles, "concurrency=rma", "max_minutes=0.3", "total_steps=1e12", "log.every=1s")
    first, last = rows[len(rows) // 2 - 1], rows[-2]  # the last one includes the final evaluation
    both = (last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"]) / 1e6
    measured = {"rollouts": rollouts, "updates": updates, "both": both, "share": both / min(rollouts, updates)}
    return {name: round(value, 4) for name, value in measured.items()}


def learning_curve(env: str, n_envs: int, seed: int, seconds: float = 4.0, points: int = 40) -> Values:
    """Train as in figures 2b and 2c, with evaluations spaced evenly in the logarithm of time.

    The clock counts rollouts and updates only, so evaluations cost nothing. A training before it loads all kernels.
    """
    given = (f"experiment=warpsci_{env}", f"n_envs={n_envs}", "device=cpu")
    training_of(*given).take(3 * 16 * n_envs)
    run = training_of(*given, f"seed={seed}")
    due = [0.005 * (seconds / 0.005) ** (i / (points - 1)) for i in range(points)]
    spent, steps, curve = 0.0, 0, []
    with closing(Evaluator(run.setup, run.agent, 100, 1000 + seed)) as evaluator:
        while due:
            began = time.perf_counter()
            steps += run.iterate()
            spent += time.perf_counter() - began
            if spent >= due[0]:
                (mean,) = evaluator.play(greedy=True).mean_return.values()
                curve.append((round(spent, 5), steps, round(mean, 3)))
                due = [moment for moment in due if moment > spent]
    bar = float(run.config.env.solved_at or math.inf)
    reached = next((point for point in curve if point[2] >= bar), None)
    return {"bar": bar, "s": reached[0] if reached else None, "env_steps": reached[1] if reached else None, "curve": curve}


# From a command to its end --------------------------------------------------------------------------------------------

TRAINING = ["env=cartpole", "n_envs=10000"]
MISTYPED = "n_env=1"
COMMANDS = {
    "`warprun env=cartpole n_envs=10000`, empty cache": TRAINING,
    "the same, filled cache": TRAINING,
    "`warprun envs`": ["envs"],
    "a mistyped key": ["env=cartpole", MISTYPED],
    "`warprun --help`": ["--help"],
}


def startup() -> dict[str, dict[str, float]]:
    """Return seconds on the clock, and of processor time in all processes, of commands with a new cache. RuntimeError if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        return {name: time_of([sys.executable, "-m", "warprun", *command], folder) for name, command in COMMANDS.items()}


def time_of(program: list[str], folder: str) -> dict[str, float]:
    """Return the seconds of a program with its cache and its output in `folder`."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(program, env=os.environ | {"WARPRUN_CACHE_DIR": folder}, cwd=folder, capture_output=True, text=True)
    spent, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != (2 if program[-1] == MISTYPED else 0):
        raise RuntimeError(f"startup: {' '.join(program)} has failed: {done.stderr.strip()}")
    return {"s": round(spent, 3), "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)}


# A program in C -------------------------------------------------------------------------------------------------------

SOURCE = ROOT / "scripts" / "bench" / "cartpole_limit.c"
FLAGS = ("-O2", "-march=native", "-ffast-math", "-pthread")
THREADS, ENVIRONMENTS, SECONDS = 2, 10_048, 2.0
"""157 tiles of 64 environments."""


def limit_by_c(units: int) -> dict[str, float]:
    """Return million steps per second of rollouts and of training by the C program."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/limit"
        subprocess.run(["gcc", *FLAGS, f"-DH={units}", str(SOURCE), "-o", program, "-lm"], check=True)
        done = subprocess.run([program, str(THREADS), str(ENVIRONMENTS), str(SECONDS)], check=True, capture_output=True, text=True)
    found = re.search(r"rollout ([\d.]+), training ([\d.]+)", done.stdout)
    if not found:
        raise ValueError(f"the program printed {done.stdout!r}")
    return {"rollout": float(found[1]), "training": float(found[2])}


def limit_by_warprun(units: int) -> dict[str, float]:
    """Return the same of warprun, with normalized advantages and without normalized observations and rewards."""
    network = f"agent.network.hidden=[{units},{units}]"
    plain = ("agent.normalize_obs=false", "agent.normalize_reward=false", f"concurrency.threads={THREADS}", "device=cpu")
    run = training_of("env=cartpole", "agent=a2c", "tuned=none", "agent.horizon=16", network, f"n_envs={ENVIRONMENTS}", *plain)
    run.take(20 * run.steps)  # machine code replaces the calls of an update after some iterations
    return {"rollout": rate(run.rollout, SECONDS) / 1e6, "training": rate(run.iterate, SECONDS) / 1e6}


def limit() -> dict[str, float]:
    """Return million steps per second of A2C on CartPole by warprun and by a yardstick in C, and the shares that warprun reaches."""
    found: dict[str, float] = {}
    for units in (64, 32):
        most_of, own = limit_by_c(units), limit_by_warprun(units)
        for kind, most in most_of.items():
            found |= {f"C {units} {kind}": most, f"warprun {units} {kind}": own[kind], f"share {units} {kind}": own[kind] / most}
    return {name: round(value, 4) for name, value in found.items()}


# The COVID-19 economy -------------------------------------------------------------------------------------------------

ROWS = 9
"""Steps of a rollout without learning."""


def warm(work: Callable[[], int], seconds: float) -> float:
    """Return how much `work` does per second after its first two calls."""
    work()
    work()
    return rate(work, seconds)


def covid_simulation(n_envs: int, seconds: float, *overrides: str) -> float:
    """Return environment steps per second of random allowed actions and their days, with further settings of a run."""
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


def covid_by_numpy(n_envs: int) -> float:
    """Return environment steps per second of the vectorized NumPy implementation of the tests, which uses one thread."""
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


def covid_training(n_envs: int, seconds: float) -> float:
    """Return environment steps per second of training both 256-256 policies with two threads, one epoch as in the published run."""
    torch.set_num_threads(1)  # as in a run: kernels have their own threads, and torch's would compete with them
    # A rollout of 1,000 environments and 90 days would take 2 GB and a minute.
    given = ("concurrency.threads=2", "agent.epochs=1", f"agent.horizon={90 if n_envs <= 60 else 18}")
    return warm(training_of("env=covid", "device=cpu", f"n_envs={n_envs}", *given).iterate, seconds)


def covid() -> dict[str, float]:
    """Return environment steps per second (52 actors each) of the COVID-19 economy, on one thread unless the name says otherwise."""
    found = {f"kernels {n}": covid_simulation(n, 3.0, "concurrency.threads=1") for n in (1, 60, 1000)}
    found |= {f"numpy {n}": covid_by_numpy(n) for n in (1, 60, 1000)}
    found["kernels 1000, two threads"] = covid_simulation(1000, 3.0, "concurrency.threads=2")
    found |= {f"training {n}, two threads": covid_training(n, 4.0) for n in (60, 1000)}
    return {name: round(speed, 1) for name, speed in found.items()}
