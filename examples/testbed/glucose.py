"""Hold the blood glucose of a person without insulin at its level through meals, by a pump of insulin whose effect comes late.

The minimal model of Bergman and others, American Journal of Physiology 236, E667, 1979, with the numbers for diabetes and the meal of
Fisher, "A semiclosed-loop algorithm for the control of blood glucose levels in diabetics", IEEE Trans. Biomed. Eng. 38, 1991. The times
and sizes of meals and the limits of glucose are this file's own.
"""

from typing import NamedTuple

from warprun.environment import Box, float32, single_agent
from warprun.math import clip, where
from warprun.random import uniform


class State(NamedTuple):
    glucose: float32  # above its level, mmol/L
    effect: float32  # of insulin, 1/min
    insulin: float32  # above its level, mU/L
    meal: float32  # glucose that comes from the gut, mmol/L/min


class Params(NamedTuple):
    level: float = 4.5  # of glucose, mmol/L
    insulin_level: float = 15.0  # mU/L
    p2: float = 0.025  # 1/min
    p3: float = 1.3e-5  # L/mU/min^2
    clearance: float = 0.0926  # of insulin, 5/54 1/min
    volume: float = 12.0  # of insulin, L
    gut: float = 0.05  # 1/min
    meals: float = 0.02  # probability of a meal in a step
    dt: float = 5.0  # min


def reset(rng):
    return State(uniform(rng, 0, -0.5, 4.0), 0.0, 0.0, 0.0)


def step(s, action, rng, p):
    meal = s.meal + where(uniform(rng, 0, 0.0, 1.0) < p.meals, uniform(rng, 1, 0.1, 0.3), float32(0.0))
    glucose = s.glucose + p.dt * (meal - s.effect * (s.glucose + p.level))
    effect = s.effect + p.dt * (p.p3 * s.insulin - p.p2 * s.effect)
    insulin = s.insulin + p.dt * (action[0] / p.volume - p.clearance * (s.insulin + p.insulin_level))
    glucose = clip(glucose, 1.0 - p.level, 30.0 - p.level)  # kidneys take what is above 30
    return State(glucose, effect, insulin, meal - p.dt * p.gut * meal), -glucose * glucose, False


def observe(s):
    return s.glucose, s.effect, s.insulin, s.meal


environment = single_agent(
    state=State, params=Params, observation=Box(4), action=Box(1, 0.0, 100.0), reset=reset, step=step, observe=observe, time_limit=288
)
