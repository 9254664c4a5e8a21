"""Branches that return numbers of other types, and that write other entries of an observation."""

from typing import Annotated, NamedTuple

import numpy as np

from warprun.environment import Box, Discrete, float32, int32, single_agent


class State(NamedTuple):
    x: float32
    n: int32
    cells: Annotated[np.ndarray, 2, int32]


def reset(s):
    s.cells[0] = 0
    s.cells[1] = 0
    return State(0, 0, s.cells)


def moved(s, by):
    if s.n > 5:
        return State(s.x, s.n, s.cells)
    return State(s.x + 0.125, s.n + by, s.cells)


def step(s, action):
    if s.x > 0.7:
        return State(False, True, s.cells), 1, False
    s.cells[1] = s.cells[1] + action
    if action == 0:
        return State(cells=s.cells, x=s.x + 0.25, n=s.n), 0.5, 0
    return moved(s, action), True, s.x > 5.0


def observe(s, out):
    out[0] = s.x
    if s.x > 0.5:
        out[1] = 1.0
    elif s.n < 3:
        out[2] = float32(s.n)
    for _ in range(s.n):
        out[3] = out[3] + 1.0


environment = single_agent(state=State, observation=Box(4), action=Discrete(2), reset=reset, step=step, observe=observe, time_limit=7)
