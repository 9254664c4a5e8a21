"""A group that reads itself: a phase gets the values from before it, whatever the size of the group."""

from typing import Annotated, NamedTuple

import numpy as np

from warprun.environment import Box, Discrete, Environment, Group, Phase, float32, int32


class State(NamedTuple):
    heights: Annotated[np.ndarray, 3]
    visits: Annotated[np.ndarray, 2, int32]
    seen: float32
    counted: int32


def reset(s):
    for n in range(3):
        s.heights[n] = 0.0
    s.visits[0] = 0
    s.visits[1] = 0
    return State(s.heights, s.visits, 0.0, int32(0))


def step_of_one(s, t, cells):
    s.heights[1] = float32(t) + 1.0
    s.visits[1] = t + 1
    return State(s.heights, s.visits, cells.heights[1], cells.visits[1]), 0.0, False


def step_of_several(s, t, i, cells):
    s.heights[1] = float32(t) + 1.0
    s.visits[1] = t + 1
    return State(s.heights, s.visits, cells.heights[1, i], cells.visits[1, i]), 0.0, False


def observe(s):
    return s.seen, float32(s.counted), s.heights[1], float32(s.visits[1])


def environment(size=1):
    cells = Group("cells", size, State, Box(4), Discrete(2), reset, observe)
    return Environment(groups=(cells,), phases=(Phase("cells", step_of_one if size == 1 else step_of_several),))
