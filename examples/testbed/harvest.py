"""Harvest fish that others hunt (Lotka-Volterra with a limit of growth), for 2,000 steps: who takes much at once has none later."""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, single_agent
from warprun.math import maximum
from warprun.random import uniform

EFFORTS = 5


class State(NamedTuple):
    prey: float32
    hunters: float32


class Params(NamedTuple):
    growth: float = 1.0
    capacity: float = 2.0e6
    hunting: float = 2.0e-6
    gain: float = 0.4
    death: float = 0.5
    dt: float = 0.05
    effort: float = 1.2  # largest rate of harvest


def reset(rng):
    return State(uniform(rng, 0, 5.0e5, 1.5e6), uniform(rng, 1, 5.0e4, 3.0e5))


def step(s, action, p):
    caught = p.effort * action / (EFFORTS - 1) * s.prey
    born = p.growth * s.prey * (1.0 - s.prey / p.capacity)
    prey = s.prey + p.dt * (born - p.hunting * s.prey * s.hunters - caught)
    hunters = s.hunters + p.dt * (p.gain * p.hunting * s.prey - p.death) * s.hunters
    return State(maximum(prey, 1.0), maximum(hunters, 1.0)), p.dt * caught, False


def observe(s):
    return s.prey, s.hunters


environment = single_agent(
    state=State, params=Params, observation=Box(2), action=Discrete(EFFORTS), reset=reset, step=step, observe=observe, time_limit=2000
)
