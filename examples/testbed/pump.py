"""Run a pump for 3,000 days: it wears, at full speed faster, moves less as it wears, and a repair costs what it earns in twenty days.

Replacement of what wears: Puterman, "Markov Decision Processes", Wiley, 1994. The numbers of this file are its own.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.random import randint, uniform

WORN = 40  # largest wear
GENTLE, FULL, REPAIR = 0, 1, 2


class State(NamedTuple):
    wear: int32
    busy: int32  # 1 while much is asked for


class Params(NamedTuple):
    slowly: float = 0.01  # probability that a day at gentle speed wears the pump
    fast: float = 0.04  # the same at full speed
    loss: float = 0.02  # of the output, for each step of wear
    calm: float = 0.05  # what full speed earns more than gentle speed, which earns 1
    rush: float = 1.0  # the same while much is asked for
    changes: float = 0.02  # probability that much or little is asked for the next day
    repair: float = 20.0  # cost


def reset(rng):
    return State(int32(randint(rng, 0, 20)), int32(randint(rng, 1, 2)))


def step(s, action, rng, p):
    more = p.rush if s.busy == 1 else p.calm
    speed = 1.0 + (more if action == FULL else 0.0)
    earned = -p.repair if action == REPAIR else speed * (1.0 - p.loss * float32(s.wear))
    worn = uniform(rng, 0, 0.0, 1.0) < (p.fast if action == FULL else p.slowly)
    wear = 0 if action == REPAIR else min(s.wear + (1 if worn else 0), WORN)
    changed = uniform(rng, 1, 0.0, 1.0) < p.changes
    return State(int32(wear), int32(1 - s.busy if changed else s.busy)), earned, False


def observe(s):
    return float32(s.wear), float32(s.busy)


environment = single_agent(
    state=State, params=Params, observation=Box(2), action=Discrete(3), reset=reset, step=step, observe=observe, time_limit=3000
)
