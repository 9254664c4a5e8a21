"""Order goods that arrive two days later; what is not in stock is not sold. An order costs something, and so do goods on the shelf."""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.random import randint

ORDERS, SHELF, DEMANDS = 13, 40, 8  # orders of 0 to 12, demands of 0 to 7


class State(NamedTuple):
    stock: int32
    tomorrow: int32  # what arrives after this day
    after: int32  # what arrives a day later


class Params(NamedTuple):
    hold: float = 1.0  # cost of a piece on the shelf, per day
    lost: float = 10.0  # cost of a piece that is asked for and not there
    order: float = 8.0  # cost of an order of any size


def reset(rng):
    return State(int32(randint(rng, 0, 15)), int32(0), int32(0))


def step(s, action, rng, p):
    demand = randint(rng, 0, DEMANDS)
    rest, lost = max(s.stock - demand, 0), max(demand - s.stock, 0)
    cost = p.hold * float32(rest) + p.lost * float32(lost) + (p.order if action > 0 else 0.0)
    return State(int32(min(rest + s.tomorrow, SHELF)), s.after, int32(action)), -cost, False


def observe(s):
    return float32(s.stock), float32(s.tomorrow), float32(s.after)


environment = single_agent(
    state=State, params=Params, observation=Box(3), action=Discrete(ORDERS), reset=reset, step=step, observe=observe, time_limit=100
)
