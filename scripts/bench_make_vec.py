"""Measure `warprun.make_vec` against Gymnasium's vectorized CartPole and, with gymnax=PYTHON, against gymnax.

    python scripts/bench_make_vec.py [num_envs=10000] [rounds=15] [gymnax=/path/to/python]

Random actions, drawn before. The candidates take turns, a few hundred steps each; the table has the medians of the rounds. PYTHON is a
Python with jax and gymnax installed; its steps run under jax.jit, one call for each step, as with Gymnasium, and with automatic resets.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

STEPS = 200
"""Steps of a candidate in a round."""

GYMNAX = """
import sys, time
import jax, gymnax, numpy as np
n, steps = int(sys.argv[1]), int(sys.argv[2])
env, params = gymnax.make("CartPole-v1")
keys = jax.random.split(jax.random.key(0), n)
obs, state = jax.vmap(env.reset, in_axes=(0, None))(keys, params)
@jax.jit
def step(key, state, actions):
    key, drawn = jax.random.split(key)
    return key, *jax.vmap(env.step, in_axes=(0, 0, 0, None))(jax.random.split(drawn, n), state, actions, params)
actions = [np.random.default_rng(k).integers(0, 2, n) for k in range(20)]
key = jax.random.key(1)
key, obs, state, *_ = step(key, state, actions[0])
for line in sys.stdin:
    began = time.perf_counter()
    for k in range(steps):
        key, obs, state, *results = step(key, state, actions[k % 20])
        np.asarray(obs)
    print((time.perf_counter() - began) / steps, flush=True)
"""


def main(arguments: list[str]) -> None:
    """Print the table."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    unknown = set(given) - {"num_envs", "rounds", "gymnax"}
    if unknown:
        raise SystemExit(f"unknown argument {min(unknown)}; it has num_envs, rounds and gymnax")
    n, rounds = int(float(given.get("num_envs", 10_000))), int(given.get("rounds", 15))
    candidates: dict[str, Callable[[], float]] = {"gymnasium": gymnasium(n)}
    cores = len(os.sched_getaffinity(0))
    for threads in sorted({1, cores}):
        candidates[f"warprun, threads={threads}"] = warprun(n, threads=threads)
    candidates["warprun, copy=False"] = warprun(n, threads=1, copy=False)
    candidates["warprun, torch"] = warprun(n, threads=1, output="torch")
    if "gymnax" in given:
        candidates["gymnax (jit)"] = gymnax(given["gymnax"], n)
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds + 1):
        for name, measure in candidates.items():
            times[name].append(measure())
    medians = {name: statistics.median(found[1:]) for name, found in times.items()}  # the first round warms up
    print(f"{n:,} CartPole environments, random actions, median of {rounds} rounds of {STEPS} steps, {cores} cores")
    print(f"{'':24}{'us per step':>12}{'M steps/s':>12}{'of gymnasium':>14}{'of gymnax':>12}")
    for name, seconds in medians.items():
        ratios = [f"{medians['gymnasium'] / seconds:.1f}x", f"{medians['gymnax (jit)'] / seconds:.1f}x" if "gymnax" in given else "-"]
        print(f"{name:24}{1e6 * seconds:12.1f}{n / seconds / 1e6:12.1f}{ratios[0]:>14}{ratios[1]:>12}")
    print(f"least of all rounds: warprun {1e6 * min(times['warprun, threads=1']):.1f} us, gymnasium {1e6 * min(times['gymnasium']):.1f} us")


def stepping(envs, n: int) -> Callable[[], float]:
    """Return a function that takes STEPS steps and returns the seconds of one."""
    import numpy as np

    actions = [np.random.default_rng(k).integers(0, 2, n) for k in range(20)]
    envs.reset(seed=0)

    def measure() -> float:
        began = time.perf_counter()
        for k in range(STEPS):
            envs.step(actions[k % 20])
        return (time.perf_counter() - began) / STEPS

    return measure


def warprun(n: int, **options) -> Callable[[], float]:
    """Return the measurement of warprun."""
    import warprun

    return stepping(warprun.make_vec("cartpole", n, **options), n)


def gymnasium(n: int) -> Callable[[], float]:
    """Return the measurement of Gymnasium's vectorized CartPole, written with numpy."""
    import gymnasium

    return stepping(gymnasium.make_vec("CartPole-v1", num_envs=n, vectorization_mode="vector_entry_point"), n)


def gymnax(python: str, n: int) -> Callable[[], float]:
    """Return the measurement of gymnax in another Python."""
    process = subprocess.Popen([python, "-c", GYMNAX, str(n), str(STEPS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    to, back = process.stdin, process.stdout

    def measure() -> float:
        to.write("go\n")
        to.flush()
        line = back.readline()
        if not line:
            raise SystemExit(f"gymnax={python} failed; its message is above")
        return float(line)

    return measure


if __name__ == "__main__":
    main(sys.argv[1:])
