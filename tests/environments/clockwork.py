"""Count steps; the reward grows by 1 per step and action 1 terminates. The end of an episode can be computed by hand."""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.random import uniform


class State(NamedTuple):
    ticket: float32  # drawn at reset, to tell episodes apart
    steps: int32


class Params(NamedTuple):
    weight: float = 2.0
    length: float = 1.0


def reset(rng):
    return State(uniform(rng, 0, 0.0, 1.0), int32(0))


def step(s, action):
    return State(s.ticket, int32(s.steps + 1)), float32(s.steps + 1), action == 1


def observe(s, t, p):
    return s.ticket, float32(s.steps), float32(t), p.weight, p.length


environment = single_agent(
    state=State, params=Params, observation=Box(5), action=Discrete(2), reset=reset, step=step, observe=observe, time_limit=3
)
