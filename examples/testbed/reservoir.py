"""Release water from a reservoir for 5,000 days: summers need what winters bring, and a wet spell floods what a full reservoir cannot hold.

Release rules under uncertain inflow: Loucks and van Beek, "Water Resource Systems Planning and Management", Springer, 2017. The numbers of
this file are its own.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.math import cos, pi, sin
from warprun.random import randint, uniform

ROOM, RELEASES, MONTH, MONTHS = 600, 13, 30, 12  # hm^3, releases of 0 to 12 hm^3/day, days, months of a year
WET = (16, 16, 14, 12, 9, 5, 3, 3, 5, 9, 12, 15)  # inflow in a wet spell, hm^3/day, by month
DRY = (3, 3, 3, 2, 2, 1, 0, 0, 1, 1, 2, 3)
NEED = (2, 2, 2, 3, 4, 6, 7, 7, 5, 3, 2, 2)


class State(NamedTuple):
    water: int32  # hm^3
    wet: int32  # 1 in a wet spell


class Params(NamedTuple):
    dries: float = 0.05  # probability that a wet spell ends
    wets: float = 0.02  # probability that it begins
    safe: float = 8.0  # outflow above it is a flood, hm^3/day
    short: float = 1.0  # cost of a squared hm^3/day that is missing
    flood: float = 1.0  # cost of a squared hm^3/day above `safe`


def reset(rng):
    return State(int32(randint(rng, 0, ROOM + 1)), int32(randint(rng, 1, 2)))


def step(s, action, rng, t, p):
    month = t // MONTH % MONTHS
    there = s.water + (WET[month] if s.wet == 1 else DRY[month])
    released = min(action, there)
    water = min(there - released, ROOM)
    missing = max(float32(NEED[month] - released), 0.0)
    above = max(float32(there - water) - p.safe, 0.0)  # what does not fit flows over
    changes = uniform(rng, 0, 0.0, 1.0) < (p.dries if s.wet == 1 else p.wets)
    cost = p.short * missing * missing + p.flood * above * above
    return State(int32(water), int32(1 - s.wet if changes else s.wet)), -cost, False


def observe(s, t):
    year = 2.0 * pi * float32(t // MONTH % MONTHS) / float32(MONTHS)
    return float32(s.water), float32(s.wet), cos(year), sin(year)


environment = single_agent(
    state=State,
    params=Params,
    observation=Box(4),
    action=Discrete(RELEASES),
    reset=reset,
    step=step,
    observe=observe,
    time_limit=5000,
)
