"""Keep the shield of a calorimeter within 0.1 K of its sample, whose temperature wanders by some K: all is observed in K, around 300.

Westrum, Furukawa and McCullough, "Adiabatic low-temperature calorimetry", in "Experimental Thermodynamics" I, Butterworths, 1968. The
numbers of this file are its own.
"""

from typing import NamedTuple

from warprun.environment import Box, float32, single_agent
from warprun.random import normal, uniform


class State(NamedTuple):
    shield: float32  # K
    plate: float32  # that heats and cools it, K
    sample: float32  # K
    before: float32  # sample a step ago, K


class Params(NamedTuple):
    room: float = 295.0  # K
    loss: float = 0.02  # of the shield to the room, share in a step of 1 s
    passes: float = 0.2  # from the plate to the shield, share in a step
    heat: float = 0.02  # of the plate, K/W in a step
    noise: float = 0.02  # of the shield, K
    keep: float = 0.98  # share of the change of the sample that the next step has, too
    gust: float = 0.005  # K, of that change
    near: float = 0.1  # distance from the sample at which half the reward is left, K


def reset(rng):
    sample = uniform(rng, 0, 295.0, 305.0)
    start = sample + uniform(rng, 1, -2.0, 2.0)
    return State(start, start, sample, sample)


def step(s, action, rng, p):
    passed = p.passes * (s.plate - s.shield)
    plate = s.plate + p.heat * action[0] - passed
    shield = s.shield + passed - p.loss * (s.shield - p.room) + p.noise * normal(rng, 0)
    sample = s.sample + p.keep * (s.sample - s.before) + p.gust * normal(rng, 1)
    away = (shield - sample) / p.near
    return State(shield, plate, sample, s.sample), 1.0 / (1.0 + away * away), False


def observe(s):
    return s.shield, s.plate, s.sample, s.before


environment = single_agent(
    state=State, params=Params, observation=Box(4), action=Box(1, -100.0, 100.0), reset=reset, step=step, observe=observe, time_limit=300
)
