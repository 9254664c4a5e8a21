"""Bring a mass on a line to rest at 0, with rewards in units of `scale`: a linear system with quadratic costs."""

from typing import NamedTuple

from warprun.environment import Box, float32, single_agent
from warprun.random import uniform


class State(NamedTuple):
    place: float32
    speed: float32


class Params(NamedTuple):
    scale: float = 1.0
    dt: float = 0.1
    effort: float = 0.1


def reset(rng):
    return State(uniform(rng, 0, -1.0, 1.0), uniform(rng, 1, -1.0, 1.0))


def step(s, action, p):
    force = action[0]
    cost = s.place * s.place + p.effort * force * force
    speed = s.speed + p.dt * force
    return State(s.place + p.dt * speed, speed), -p.scale * cost, False


def observe(s):
    return s.place, s.speed


environment = single_agent(
    state=State, params=Params, observation=Box(2), action=Box(1, -3.0, 3.0), reset=reset, step=step, observe=observe, time_limit=100
)
