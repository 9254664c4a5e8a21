"""Episodes whose returns have a known distribution: the reward of each of four steps is a standard normal number.

With `endless` there is no time limit and every step has reward 1. Episodes with a ticket up to one half end after the second step; the
others never end.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, Environment, float32, int32, single_agent
from warprun.random import normal, uniform


class State(NamedTuple):
    ticket: float32
    steps: int32


def reset(rng):
    return State(uniform(rng, 0, 0.0, 1.0), int32(0))


def step(s, rng):
    return State(s.ticket, int32(s.steps + 1)), normal(rng, 0), False


def step_endless(s):
    return State(s.ticket, int32(s.steps + 1)), 1.0, s.ticket <= 0.5 and s.steps == 1


def observe(s):
    return (s.ticket,)


def environment(endless: bool = False) -> Environment:
    return single_agent(
        state=State,
        observation=Box(1),
        action=Discrete(2),
        reset=reset,
        step=step_endless if endless else step,
        observe=observe,
        time_limit=None if endless else 4,
    )
