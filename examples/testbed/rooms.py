"""Heat three rooms that share their walls, each off, half or on, to 20 degrees with little energy: three choices at once."""

from typing import NamedTuple

from warprun.environment import Box, MultiDiscrete, float32, single_agent
from warprun.random import uniform

OUTSIDE, WANTED = 5.0, 20.0


class State(NamedTuple):
    a: float32
    b: float32
    c: float32


class Params(NamedTuple):
    loss: float = 0.02
    wall: float = 0.05
    heat: float = 0.8


def reset(rng):
    return State(uniform(rng, 0, 10.0, 25.0), uniform(rng, 1, 10.0, 25.0), uniform(rng, 2, 10.0, 25.0))


def step(s, action, p):
    a = s.a - p.loss * (s.a - OUTSIDE) + p.wall * (s.b - s.a) + 0.5 * p.heat * action[0]
    b = s.b - p.loss * (s.b - OUTSIDE) + p.wall * (s.a + s.c - 2.0 * s.b) + 0.5 * p.heat * action[1]
    c = s.c - p.loss * (s.c - OUTSIDE) + p.wall * (s.b - s.c) + 0.5 * p.heat * action[2]
    return State(a, b, c), -(abs(a - WANTED) + abs(b - WANTED) + abs(c - WANTED)), False


def observe(s):
    return s.a, s.b, s.c


environment = single_agent(
    state=State,
    params=Params,
    observation=Box(3),
    action=MultiDiscrete((3, 3, 3)),
    reset=reset,
    step=step,
    observe=observe,
    time_limit=100,
)
