"""Five producers and one regulator: two groups in four phases that use every feature of the environment contract.

The numbers have no meaning. Every argument that an environment function can have is used somewhere.
"""

from typing import Annotated, NamedTuple

import numpy as np

from warprun.environment import Box, Discrete, Environment, Group, MultiDiscrete, Phase, float32, int32
from warprun.random import normal, randint, uniform

PRODUCERS = 5
MEMORY = 3


class Producer(NamedTuple):
    price: float32
    stock: int32
    sold: float32
    history: Annotated[np.ndarray, MEMORY]  # units sold in the last steps, a ring
    visits: Annotated[np.ndarray, 2, int32]  # steps with and without a sale


class Regulator(NamedTuple):
    tax: float32
    quota: int32
    income: float32
    peak: float32


class Params(NamedTuple):
    imitation: float = 0.3  # how far a price follows the neighbour's
    slope: float = 0.05  # what selling one unit does to the price
    noise: float = 0.02
    restock: int = 3  # largest delivery
    crash: float = 1.5  # the price that ends the episode
    target: float = 1.3  # the income that ends the episode


class Tables(NamedTuple):
    demand: np.ndarray  # [7, producers], by step and producer
    bonus: np.ndarray  # [3] int32, units delivered for free, by the regulator's choice


def tables(scale):
    demand = scale * np.sin(np.arange(7 * PRODUCERS)).reshape(7, PRODUCERS)
    return Tables(demand.astype(np.float32), np.array([0, 1, 0], np.int32))


def open_shop(s, rng, p, i):
    for n in range(MEMORY):
        s.history[n] = 0.0
    s.visits[0] = 0
    s.visits[1] = i
    return Producer(uniform(rng, 0, 0.5, 1.5), randint(rng, 1, 4), float32(0.0), s.history, s.visits)


def take_office(rng):
    return Regulator(float32(0.0), int32(1), uniform(rng, 0, 0.0, 0.1), float32(0.0))


def decide(s, action, t, producers_max):
    tax = 0.1 * float32(action[0])
    quota = int32(1 + 2 * action[1])
    reward = -0.01 * float32(t) - 0.1 * producers_max.stock
    return Regulator(tax, quota, s.income, s.peak), reward, False


def produce(s, action, rng, p, tables, t, i, regulator, producers):
    neighbour = (i + 1) % PRODUCERS
    sold = min(action, s.stock, regulator.quota)
    pull = p.imitation * (producers.price[neighbour] - s.price) + 0.01 * producers.history[t % MEMORY, neighbour]
    price = s.price + pull - p.slope * float32(sold) + tables.demand[t % 7, i] + p.noise * normal(rng, 1)
    s.history[t % MEMORY] = float32(sold)
    s.visits[1 if sold > 0 else 0] += 1
    delivered = randint(rng, 0, p.restock + 1) + tables.bonus[action % 3]
    state = Producer(price, int32(s.stock - sold + delivered), float32(sold), s.history, s.visits)
    return state, price * float32(sold) * (1.0 - regulator.tax), price > p.crash


def account(s, p, producers_sum, producers_max, producers):
    income = s.income + s.tax * producers_sum.sold
    peak = max(s.peak, producers.price[0])
    return Regulator(s.tax, s.quota, income, peak), 0.5 * income - 0.01 * producers_max.stock, income > p.target


def pay(s, regulator):
    return s, -0.05 * regulator.peak * s.sold, False


def look(s, i, regulator, producers, producers_sum):
    before = producers.price[(i + PRODUCERS - 1) % PRODUCERS]
    return s.price, float32(s.stock), s.history[1], float32(s.visits[1]), regulator.tax, producers_sum.sold, before


def can_sell(s, k, regulator):
    return k <= s.stock and k <= regulator.quota


def survey(s, out, t, producers, producers_max):
    for i in range(PRODUCERS):
        out[i] = producers.price[i]
        out[PRODUCERS + i] = producers.history[0, i]
    out[2 * PRODUCERS] = s.income
    out[2 * PRODUCERS + 1] = producers_max.stock
    out[2 * PRODUCERS + 2] = float32(t)


def can_decide(s, k, t):
    if k < 3:  # the first choice: the tax
        return k < 2 or s.income > 0.4
    return k == 3 or t % 2 == 0  # the second: the quota


environment = Environment(
    groups=(
        Group(
            "producers",
            PRODUCERS,
            Producer,
            observation=Box(7),
            action=Discrete(4),
            reset=open_shop,
            observe=look,
            mask=can_sell,
            sums=("sold",),
            maxima=("stock", "price"),
        ),
        Group(
            "regulator",
            1,
            Regulator,
            observation=Box(2 * PRODUCERS + 3),
            action=MultiDiscrete((3, 2)),
            reset=take_office,
            observe=survey,
            mask=can_decide,
        ),
    ),
    phases=(Phase("regulator", decide), Phase("producers", produce), Phase("regulator", account), Phase("producers", pay)),
    params=Params,
    time_limit=12,
    tables=tables,
    options={"scale": 0.05},
)
