"""Pack things of different size and worth, one after the other, into a box of limited size; what is packed or too large is masked."""

from typing import Annotated, NamedTuple

import numpy as np

from warprun.environment import Box, Discrete, float32, single_agent
from warprun.random import uniform

THINGS = 8
CLOSE = THINGS  # the action that ends an episode


class State(NamedTuple):
    size: Annotated[np.ndarray, THINGS]
    worth: Annotated[np.ndarray, THINGS]  # 0 if it is packed
    room: float32


class Params(NamedTuple):
    room: float = 1.5  # size of the box; things have 0.1 to 1


def reset(s, rng, p):
    for n in range(THINGS):
        s.size[n] = uniform(rng, n, 0.1, 1.0)
        s.worth[n] = uniform(rng, THINGS + n, 0.1, 1.0)
    return State(s.size, s.worth, p.room)


def step(s, action):
    if action == CLOSE:
        return s, 0.0, True
    earned, room = s.worth[action], s.room - s.size[action]
    s.worth[action] = 0.0
    return State(s.size, s.worth, room), earned, False


def mask(k, s):
    return k == CLOSE or (s.worth[min(k, THINGS - 1)] > 0.0 and s.size[min(k, THINGS - 1)] <= s.room)


def observe(s, out):
    for n in range(THINGS):
        out[n] = s.size[n]
        out[THINGS + n] = s.worth[n]
    out[2 * THINGS] = s.room


environment = single_agent(
    state=State,
    params=Params,
    observation=Box(2 * THINGS + 1),
    action=Discrete(THINGS + 1),
    reset=reset,
    step=step,
    observe=observe,
    mask=mask,
    time_limit=THINGS + 1,
)
