"""Calibrate one of 20 detectors in each step: all drift at random, some fast, and the errors of some cost more.

A restless bandit: Whittle, "Restless bandits: activity allocation in a changing world", Journal of Applied Probability 25A, 1988. The
numbers of this file are its own.
"""

from typing import Annotated, NamedTuple

import numpy as np

from warprun.environment import Box, Discrete, single_agent
from warprun.random import normal, uniform

DETECTORS = 20
DRIFT = (0.2, 1.0, 0.4, 0.6, 0.3, 0.8, 0.2, 0.5, 1.0, 0.3, 0.6, 0.4, 0.8, 0.2, 0.5, 0.3, 1.0, 0.4, 0.6, 0.5)  # of a step, %
WEIGHT = (4.0, 1.0, 1.0, 2.0, 0.5, 0.5, 2.0, 1.0, 0.5, 4.0, 0.5, 2.0, 1.0, 1.0, 4.0, 1.0, 2.0, 0.5, 1.0, 2.0)  # of a squared error


class State(NamedTuple):
    error: Annotated[np.ndarray, DETECTORS]  # %


class Params(NamedTuple):
    left: float = 0.1  # error after a calibration, %
    price: float = 0.01  # of a squared % with weight 1


def reset(s, rng):
    for n in range(DETECTORS):
        s.error[n] = uniform(rng, n, -2.0, 2.0)
    return s


def step(s, action, rng, p):
    s.error[action] = p.left * normal(rng, DETECTORS)
    cost = 0.0
    for n in range(DETECTORS):
        cost += p.price * WEIGHT[n] * s.error[n] * s.error[n]
        s.error[n] += DRIFT[n] * normal(rng, n)
    return s, -cost, False


def observe(s, out):
    for n in range(DETECTORS):
        out[n] = s.error[n]


environment = single_agent(
    state=State,
    params=Params,
    observation=Box(DETECTORS),
    action=Discrete(DETECTORS),
    reset=reset,
    step=step,
    observe=observe,
    time_limit=300,
)
