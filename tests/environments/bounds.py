"""Actions with bounds of all sizes, some infinite: step t shows component t of what it gets."""

from typing import NamedTuple

import numpy as np

from warprun.environment import Box, float32, single_agent

SIZE = 12


class State(NamedTuple):
    x: float32


def reset():
    return State(float32(0.0))


def step(s, action, t):
    return State(action[t % SIZE]), 0.0, False


def observe(s):
    return (s.x,)


def random_bounds() -> tuple[tuple[float, ...], tuple[float, ...]]:
    random = np.random.default_rng(0)
    low = (random.standard_normal(SIZE) * 10.0 ** random.integers(-6, 6, SIZE)).astype(np.float32)
    high = low + np.abs(random.standard_normal(SIZE) * 10.0 ** random.integers(-6, 6, SIZE)).astype(np.float32)
    low[0], high[0] = -3e38, 3e38  # their difference is infinite
    low[1::6], high[2::6] = -np.inf, np.inf
    low[3::6], high[3::6] = -np.inf, np.inf
    return tuple(map(float, low)), tuple(map(float, high))


LOW, HIGH = random_bounds()
environment = single_agent(state=State, observation=Box(1), action=Box(SIZE, LOW, HIGH), reset=reset, step=step, observe=observe)
