"""Find a peak on a line of 16 cells: each step goes to a cell, which costs by distance, and measures it with noise.

An episode has 12 steps; what the last cell has, without noise, is the prize. What was measured is observed, as means and counts.
"""

from typing import Annotated, NamedTuple

import numpy as np

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.math import exp
from warprun.random import normal, randint

CELLS, STEPS = 16, 12


class State(NamedTuple):
    peak: int32  # not observed
    place: int32
    mean: Annotated[np.ndarray, CELLS]  # of what was measured in a cell, 0 before it
    count: Annotated[np.ndarray, CELLS]  # of measurements


class Params(NamedTuple):
    width: float = 1.5  # of the peak, cells
    noise: float = 0.4  # of a measurement; the peak has 1
    move: float = 0.1  # cost of the way from one cell to the next
    prize: float = 10.0  # for the peak


def reset(s, rng):
    for n in range(CELLS):
        s.mean[n] = 0.0
        s.count[n] = 0.0
    return State(int32(randint(rng, 0, CELLS)), int32(randint(rng, 1, CELLS)), s.mean, s.count)


def step(s, action, rng, t, p):
    away = float32(action - s.peak) / p.width
    height = exp(-0.5 * away * away)
    s.count[action] += 1.0
    s.mean[action] += (height + p.noise * normal(rng, 0) - s.mean[action]) / s.count[action]
    earned = (p.prize * height if t == STEPS - 1 else 0.0) - p.move * float32(abs(action - s.place))
    return State(s.peak, int32(action), s.mean, s.count), earned, t == STEPS - 1


def observe(s, out):
    for n in range(CELLS):
        out[n] = s.mean[n]
        out[CELLS + n] = s.count[n]
    out[2 * CELLS] = float32(s.place)


environment = single_agent(
    state=State,
    params=Params,
    observation=Box(2 * CELLS + 1),
    action=Discrete(CELLS),
    reset=reset,
    step=step,
    observe=observe,
    time_limit=STEPS,
)
