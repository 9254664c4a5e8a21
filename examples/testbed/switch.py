"""Push a particle over the barrier between two wells and hold it in the right one, which is less deep, against noise; a push costs.

Kramers, "Brownian motion in a field of force and the diffusion model of chemical reactions", Physica 7, 1940. The numbers of this file are
its own.
"""

from typing import NamedTuple

from warprun.environment import Box, float32, single_agent
from warprun.math import clip, sqrt
from warprun.random import normal, uniform


class State(NamedTuple):
    x: float32  # wells are near -1 and 1


class Params(NamedTuple):
    tilt: float = -0.1  # force to the right, without a push
    noise: float = 0.4  # standard deviation of what noise adds to x in a unit of time
    cost: float = 4.0  # of the square of a push, per step
    dt: float = 0.05


def reset(rng):
    return State(uniform(rng, 0, -1.2, -0.8))


def step(s, action, rng, p):
    push = action[0]
    earned = clip(s.x, 0.0, 1.0) - p.cost * push * push
    force = s.x - s.x * s.x * s.x + p.tilt + push
    return State(s.x + p.dt * force + p.noise * sqrt(p.dt) * normal(rng, 0)), earned, False


def observe(s):
    return (s.x,)


environment = single_agent(
    state=State, params=Params, observation=Box(1), action=Box(1, -1.0, 1.0), reset=reset, step=step, observe=observe, time_limit=1000
)
