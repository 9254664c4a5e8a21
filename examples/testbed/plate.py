"""Keep eight spots of a heated plate, which lie in a ring, at their temperature, each with a heater of -1000 to 1000 W."""

from typing import Annotated, NamedTuple

import numpy as np

from warprun.environment import Box, single_agent
from warprun.random import normal, uniform

SPOTS = 8


class State(NamedTuple):
    error: Annotated[np.ndarray, SPOTS]  # K
    before: Annotated[np.ndarray, SPOTS]


class Params(NamedTuple):
    keep: float = 0.85  # share of an error that stays in place after a step
    pass_on: float = 0.06  # share that goes to each neighbour
    heat: float = 0.001  # K/W
    noise: float = 0.1  # K
    power: float = 1.0e-7  # cost of a squared W


def reset(s, rng):
    for n in range(SPOTS):
        s.error[n] = uniform(rng, n, -0.5, 0.5)
        s.before[n] = 0.0
    return s


def step(s, action, rng, p):
    cost = 0.0
    for n in range(SPOTS):
        s.before[n] = s.error[n]
        cost += s.error[n] * s.error[n] + p.power * action[n] * action[n]
    for n in range(SPOTS):
        beside = s.before[(n + 1) % SPOTS] + s.before[(n + SPOTS - 1) % SPOTS]
        s.error[n] = p.keep * s.before[n] + p.pass_on * beside + p.heat * action[n] + p.noise * normal(rng, n)
    return s, -cost, False


def observe(s, out):
    for n in range(SPOTS):
        out[n] = s.error[n]


environment = single_agent(
    state=State,
    params=Params,
    observation=Box(SPOTS),
    action=Box(SPOTS, -1000.0, 1000.0),
    reset=reset,
    step=step,
    observe=observe,
    time_limit=100,
)
