"""`warprun.make_vec` against Gymnasium's vectorized CartPole: what `python scripts/reproduce.py --only make_vec` measures.

Random actions, drawn before; the candidates take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from common import in_turn, medians, timed

import warprun

STEPS, ENVIRONMENTS, TURNS = 200, 10_000, 5
"""Steps of a candidate in a turn, environments, and turns."""


def stepping(envs: Any) -> Callable[[], float]:
    """Return a function that takes STEPS steps and returns the microseconds of one."""
    actions = [np.random.default_rng(k).integers(0, 2, ENVIRONMENTS) for k in range(20)]
    envs.reset(seed=0)
    return lambda: 1e6 * timed(lambda: [envs.step(actions[k % 20]) for k in range(STEPS)]) / STEPS


def times() -> dict[str, float]:
    """Return the microseconds of a step of all environments, medians of the turns, and Gymnasium's by those of one thread."""
    made = {"gymnasium": gymnasium.make_vec("CartPole-v1", num_envs=ENVIRONMENTS, vectorization_mode="vector_entry_point")}
    made |= {f"threads={threads}": warprun.make_vec("cartpole", ENVIRONMENTS, threads=threads) for threads in (1, 2)}
    candidates = {name: stepping(envs) for name, envs in made.items()}
    in_turn(candidates, 1)  # warms up
    found = medians(in_turn(candidates, TURNS))
    return {name: round(value, 3) for name, value in (found | {"ratio": found["gymnasium"] / found["threads=1"]}).items()}
