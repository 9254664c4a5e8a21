"""An episode has a die, whose number of sides is a parameter that functions count to: it must be a whole number."""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, single_agent


class State(NamedTuple):
    reward: float32


class Params(NamedTuple):
    sides: int = 6
    worth: float = 1.0
    loaded: bool = False


def reset():
    return State(0.0)


def step(s, p):
    total = 0.0
    for side in range(p.sides):
        total += side + 1.0
    return State(p.worth * total), p.worth * total, False


def observe(s, p):
    return s.reward, p.sides, p.worth


environment = single_agent(
    state=State, params=Params, observation=Box(3), action=Discrete(2), reset=reset, step=step, observe=observe, time_limit=2
)
