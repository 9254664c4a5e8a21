"""Cut a forest for 4,000 weeks: it grows by a hundredth of itself while there is room, the price changes, and every cut costs its way.

Harvest of what grows: Clark, "Mathematical Bioeconomics", 3rd edition, Wiley, 2010. The numbers of this file are its own.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.random import randint, uniform

ROOM = 200  # volume of wood that the ground can bear
TENTHS = (0, 1, 3, 6)  # of the wood, that each action cuts


class State(NamedTuple):
    wood: int32
    dear: int32  # 1 while the price is high


class Params(NamedTuple):
    grows: float = 0.01  # of the wood, in a week, on empty ground
    changes: float = 0.02  # probability that the price changes
    high: float = 1.5  # price while wood is dear; else 1
    way: float = 4.0  # cost of a cut of any size


def reset(rng):
    return State(int32(50 + randint(rng, 0, 100)), int32(randint(rng, 1, 2)))


def step(s, action, rng, p):
    cut = TENTHS[action] * s.wood // 10
    rest = s.wood - cut
    grown = uniform(rng, 0, 0.0, 1.0) < p.grows * float32(rest) * (1.0 - float32(rest) / float32(ROOM))
    changed = uniform(rng, 1, 0.0, 1.0) < p.changes
    earned = float32(cut) * (p.high if s.dear == 1 else 1.0) - (p.way if action > 0 else 0.0)
    return State(int32(rest + 1 if grown else rest), int32(1 - s.dear if changed else s.dear)), earned, False


def observe(s):
    return float32(s.wood), float32(s.dear)


environment = single_agent(
    state=State, params=Params, observation=Box(2), action=Discrete(4), reset=reset, step=step, observe=observe, time_limit=4000
)
