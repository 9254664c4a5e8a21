"""Find a goal in a house of four rooms from anywhere: a reward of 1 at the goal, and a small cost of each step.

The four rooms are those of Sutton, Precup and Singh, "Between MDPs and semi-MDPs", Artificial Intelligence 112, 1999, with other doors.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.random import randint

SIDE, WALL, DOORS = 11, 5, (2, 8)  # cells of a side, the row and the column of walls, and where these are open
GOAL = (9, 8)


class State(NamedTuple):
    x: int32
    y: int32


class Params(NamedTuple):
    cost: float = 0.01  # of a step


def reset(rng):
    x, y = randint(rng, 0, SIDE - 1), randint(rng, 1, SIDE - 1)
    x, y = x + (1 if x >= WALL else 0), y + (1 if y >= WALL else 0)
    at_goal = x == GOAL[0] and y == GOAL[1]
    return State(int32(0 if at_goal else x), int32(0 if at_goal else y))


def step(s, action, p):
    x = min(max(s.x + (1 if action == 0 else 0) - (1 if action == 1 else 0), 0), SIDE - 1)
    y = min(max(s.y + (1 if action == 2 else 0) - (1 if action == 3 else 0), 0), SIDE - 1)
    walled = (x == WALL and y != DOORS[0] and y != DOORS[1]) or (y == WALL and x != DOORS[0] and x != DOORS[1])
    x, y = (s.x, s.y) if walled else (x, y)
    arrived = x == GOAL[0] and y == GOAL[1]
    return State(int32(x), int32(y)), (1.0 if arrived else 0.0) - p.cost, arrived


def observe(s):
    return float32(s.x), float32(s.y)


environment = single_agent(
    state=State, params=Params, observation=Box(2), action=Discrete(4), reset=reset, step=step, observe=observe, time_limit=100
)
