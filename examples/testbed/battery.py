"""Buy and sell with a battery on a market of energy: what is bought pays half a day later, and nothing after a week of hours.

The price is a pattern of a day, the same each day, and noise: a number of steps up or down that returns to 0, as in the urn of Ehrenfest.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.random import randint, uniform

PATTERN = (40, 38, 36, 35, 36, 40, 50, 62, 66, 60, 54, 50, 48, 46, 46, 48, 54, 64, 72, 70, 62, 54, 48, 44)  # EUR/MWh, by hour
LEVELS, RISE = 9, 10  # of the noise, and EUR/MWh from one to the next; the one in the middle is 0
ROOM, FASTEST, WEEK = 8, 2, 168  # MWh, MWh/h, h


class State(NamedTuple):
    charge: int32  # MWh
    level: int32  # of the noise; only the price is observed
    hour: int32  # of the week


class Params(NamedTuple):
    change: float = 0.5  # probability that the noise changes, if it is at its lowest or highest level
    loss: float = 0.1  # share of energy that is lost in each direction


def price(s):
    return float32(PATTERN[s.hour % 24] + RISE * (s.level - LEVELS // 2))


def reset(rng):
    return State(int32(randint(rng, 0, ROOM + 1)), int32(randint(rng, 1, LEVELS)), int32(0))


def step(s, action, rng, p):
    charge = min(max(s.charge + action - FASTEST, 0), ROOM)
    bought = float32(charge - s.charge)
    cost = price(s) * bought * (1.0 + p.loss if bought > 0.0 else 1.0 - p.loss)
    high, chance = float32(s.level) / float32(LEVELS - 1), uniform(rng, 0, 0.0, 1.0)
    level = s.level - (1 if chance < p.change * high else 0) + (1 if chance > 1.0 - p.change * (1.0 - high) else 0)
    return State(int32(charge), int32(level), int32(s.hour + 1)), -cost, s.hour == WEEK - 1


def observe(s):
    return float32(s.charge), price(s), float32(s.hour % 24), float32(s.hour // 24)


environment = single_agent(
    state=State,
    params=Params,
    observation=Box(4),
    action=Discrete(2 * FASTEST + 1),
    reset=reset,
    step=step,
    observe=observe,
    time_limit=WEEK,
)
