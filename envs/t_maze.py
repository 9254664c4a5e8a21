"""Remember a sign through a corridor, and turn to the side that it told: the T-maze of length L, `env.length=20`.

Source: Bakker, "Reinforcement learning with long short-term memory", Advances in Neural Information Processing Systems 14, 2001: the
maze, the codes of the observations, the four actions and the rewards. Bakker's episodes have no time limit; these have one of 10 L steps.

The first observation tells whether the goal is north or south of the junction at the end of the corridor. All later ones are the same for
both goals, so a policy without memory turns to the right side in half of the episodes: at best a mean return of (4 - 0.1) / 2 = 1.95. With
memory it is 4.
"""

from functools import partial
from typing import NamedTuple

from warprun.environment import Box, Discrete, Environment, int32, single_agent
from warprun.errors import UserError
from warprun.random import randint

NORTH, EAST, SOUTH, WEST = 0, 1, 2, 3


class State(NamedTuple):
    place: int32  # cells from the start; the junction is at `length`
    goal: int32  # NORTH or SOUTH


class Params(NamedTuple):
    right: float = 4.0  # reward for the turn to the goal
    wrong: float = -0.1  # for the turn to the other side
    still: float = -0.1  # for a step into a wall


class Tables(NamedTuple):
    length: int  # of the corridor, cells


def make_tables(length):
    return Tables(length)


def reset(rng):
    return State(int32(0), int32(NORTH if randint(rng, 0, 2) == 0 else SOUTH))


def step(s, action, p, tables):
    at_junction = s.place == tables.length
    turns = at_junction and action % 2 == 0  # NORTH or SOUTH
    east = 1 if action == EAST and not at_junction else 0
    west = 1 if action == WEST and s.place > 0 else 0
    reward = p.still if east + west == 0 else 0.0
    if turns:
        reward = p.right if action == s.goal else p.wrong
    return State(int32(s.place + east - west), s.goal), reward, turns


def observe(s, t, tables):
    corridor = t > 0 and s.place < tables.length
    north_or_between = corridor or (t == 0 and s.goal == SOUTH)
    south_or_between = corridor or (t == 0 and s.goal == NORTH)
    return 1.0 if north_or_between else 0.0, 0.0 if corridor else 1.0, 1.0 if south_or_between else 0.0


def draw(axes, state, tables):
    """Draw the maze, the agent, and the goal as a star, which the agent saw only at the first step."""
    length = tables.length
    axes.plot((0, length), (0, 0), color="0.85", linewidth=22, solid_capstyle="projecting", zorder=0)
    axes.plot((length, length), (-1, 1), color="0.85", linewidth=22, solid_capstyle="projecting", zorder=0)
    axes.plot(length, 1 if state.goal == NORTH else -1, "*", color="#e69f00", markersize=14)
    (agent,) = axes.plot((), (), "o", color="#0072b2", markersize=11)
    axes.set(xlim=(-1, length + 1), ylim=(-1.8, 1.8), aspect="auto")
    axes.axis("off")
    axes.figure.set_size_inches(6, 2)

    def show(state):
        agent.set_data((state.place,), (0,))

    return show


def environment(length: int = 20) -> Environment:
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise UserError(f"env.length={length}: the corridor needs a whole number of cells, 1 or more")
    return single_agent(
        state=State,
        params=Params,
        observation=Box(3, 0.0, 1.0),
        action=Discrete(4),
        reset=reset,
        step=step,
        observe=observe,
        tables=partial(make_tables, length),
        time_limit=10 * length,
    )
