"""Choose the side on which a light is, eight times; with other parameters something is wrong that keeps an agent from learning."""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, single_agent
from warprun.random import normal, uniform


class State(NamedTuple):
    light: float32
    outlier: float32


class Params(NamedTuple):
    right: float = 1.0  # reward
    noise: float = 0.0  # standard deviation of rewards
    outliers: float = 0.0  # share of observations in which the second number is 10^6, not 0
    seen: float = 1.0  # units of the light


def reset(rng):
    return State(uniform(rng, 0, -1.0, 1.0), 0.0)


def step(s, action, rng, p):
    right = (action == 1) == (s.light > 0.0)
    outlier = 1e6 if uniform(rng, 2, 0.0, 1.0) < p.outliers else 0.0
    return State(uniform(rng, 0, -1.0, 1.0), outlier), (p.right if right else 0.0) + p.noise * normal(rng, 1), False


def observe(s, p):
    return p.seen * s.light, s.outlier


environment = single_agent(
    state=State, params=Params, observation=Box(2), action=Discrete(2), reset=reset, step=step, observe=observe, time_limit=8
)
