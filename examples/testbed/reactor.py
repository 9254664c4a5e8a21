"""Keep a stirred tank at a temperature that changes, in K, by a heater, in W, that acts after five steps of dead time."""

from typing import NamedTuple

from warprun.environment import Box, float32, single_agent
from warprun.random import normal, uniform

SURROUNDINGS, STRONGEST = 290.0, 5000.0


class State(NamedTuple):
    temperature: float32
    wanted: float32
    first: float32  # heating that arrives next
    second: float32
    third: float32
    fourth: float32
    fifth: float32


class Params(NamedTuple):
    loss: float = 0.05  # per step
    heat: float = 0.001  # K/W per step
    noise: float = 0.1  # K


def reset(rng):
    return State(uniform(rng, 0, 300.0, 340.0), uniform(rng, 1, 310.0, 370.0), 0.0, 0.0, 0.0, 0.0, 0.0)


def step(s, action, rng, p):
    warmer = p.heat * s.first - p.loss * (s.temperature - SURROUNDINGS)
    temperature = s.temperature + warmer + p.noise * normal(rng, 0)
    error = temperature - s.wanted
    return State(temperature, s.wanted, s.second, s.third, s.fourth, s.fifth, action[0]), -error * error, False


def observe(s):
    return s.temperature, s.wanted, s.first, s.second, s.third, s.fourth, s.fifth


environment = single_agent(
    state=State,
    params=Params,
    observation=Box(7),
    action=Box(1, 0.0, STRONGEST),
    reset=reset,
    step=step,
    observe=observe,
    time_limit=200,
)
