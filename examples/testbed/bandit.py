"""Choose the arm that fits what is seen; an episode is one step, and rewards are 1,000 and noise beside what the arm gives."""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, single_agent
from warprun.random import normal, uniform

ARMS = 6


class State(NamedTuple):
    seen: float32


class Params(NamedTuple):
    noise: float = 0.5


def reset(rng):
    return State(uniform(rng, 0, 0.0, float(ARMS)))


def step(s, action, rng, p):
    fits = action <= s.seen and s.seen < action + 1
    return s, 1000.0 + (1.0 if fits else 0.0) + p.noise * normal(rng, 0), True


def observe(s):
    return (s.seen,)


environment = single_agent(
    state=State, params=Params, observation=Box(1, 0.0, ARMS), action=Discrete(ARMS), reset=reset, step=step, observe=observe, time_limit=1
)
