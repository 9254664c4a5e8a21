"""Measure `warprun.make_vec` against Gymnasium's vectorized CartPole and, with --gymnax PYTHON, against gymnax.

    python scripts/bench_make_vec.py [--num-envs 10000] [--rounds 15] [--gymnax /path/to/python]

Random actions, drawn before. The candidates take turns, a few hundred steps each; the table has the medians of the
rounds. PYTHON is a Python with jax and gymnax installed; its steps run under jax.jit, one call for each step, as with
Gymnasium, and with automatic resets.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
from common import in_turn, medians, settings, timed

import warprun
from warprun.processes import usable_cores

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


def stepping(envs: Any, n: int) -> Callable[[], float]:
    """Return a function that takes STEPS steps and returns the seconds of one."""
    actions = [np.random.default_rng(k).integers(0, 2, n) for k in range(20)]
    envs.reset(seed=0)
    return lambda: timed(lambda: [envs.step(actions[k % 20]) for k in range(STEPS)]) / STEPS


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
            raise SystemExit(f"--gymnax {python} failed; its message is above")
        return float(line)

    return measure


def main() -> None:
    """Print the table."""
    import gymnasium

    chosen = settings(__doc__, num_envs=10_000, rounds=15, gymnax="")
    n, cores = chosen.num_envs, usable_cores()
    own = {f"warprun, threads={threads}": {"threads": threads} for threads in sorted({1, cores})}
    own |= {"warprun, copy=False": {"threads": 1, "copy": False}, "warprun, torch": {"threads": 1, "output": "torch"}}
    made = {"gymnasium": gymnasium.make_vec("CartPole-v1", num_envs=n, vectorization_mode="vector_entry_point")}
    made |= {name: warprun.make_vec("cartpole", n, **options) for name, options in own.items()}
    candidates = {name: stepping(envs, n) for name, envs in made.items()}
    if chosen.gymnax:
        candidates["gymnax (jit)"] = gymnax(chosen.gymnax, n)
    in_turn(candidates, 1)  # warms up
    times = in_turn(candidates, chosen.rounds)
    print(f"{n:,} CartPole environments, random actions, median of {chosen.rounds} rounds of {STEPS} steps, {cores} cores")
    print(f"{'':24}{'us per step':>12}{'M steps/s':>12}{'of gymnasium':>14}{'of gymnax':>12}")
    of = medians(times)
    for name, seconds in of.items():
        ratios = [f"{of[other] / seconds:.1f}x" if other in of else "-" for other in ("gymnasium", "gymnax (jit)")]
        print(f"{name:24}{1e6 * seconds:12.1f}{n / seconds / 1e6:12.1f}{ratios[0]:>14}{ratios[1]:>12}")
    least = [f"{name} {1e6 * min(times[name]):.1f} us" for name in ("warprun, threads=1", "gymnasium")]
    print(f"least of all rounds: {', '.join(least)}")


if __name__ == "__main__":
    main()
