"""Harvest cells from a stirred culture by its rate of dilution, without washing them out; how fast they grow changes unseen.

Monod, "The growth of bacterial cultures", Annual Review of Microbiology 3, 1949. The numbers of this file are its own.
"""

from typing import NamedTuple

from warprun.environment import Box, float32, single_agent
from warprun.math import maximum, where
from warprun.random import uniform


class State(NamedTuple):
    cells: float32  # g/L
    food: float32  # g/L
    fastest: float32  # growth with much food, 1/h; not observed


class Params(NamedTuple):
    slowest: float = 0.1  # bounds of `fastest`, 1/h
    fastest: float = 0.7
    half: float = 2.0  # food at which growth is half the fastest, g/L
    feed: float = 10.0  # food in what flows in, g/L
    gain: float = 0.5  # g of cells of a g of food
    change: float = 0.05  # probability in a step that `fastest` is drawn again
    dt: float = 0.25  # h


def reset(rng, p):
    return State(uniform(rng, 0, 0.5, 2.0), uniform(rng, 1, 4.0, 8.0), uniform(rng, 2, p.slowest, p.fastest))


def step(s, action, rng, p):
    dilution = action[0]  # 1/h
    growth = s.fastest * s.food / (p.half + s.food)
    cells = s.cells + p.dt * (growth - dilution) * s.cells
    food = s.food + p.dt * (dilution * (p.feed - s.food) - growth * s.cells / p.gain)
    fastest = where(uniform(rng, 0, 0.0, 1.0) < p.change, uniform(rng, 1, p.slowest, p.fastest), s.fastest)
    return State(cells, maximum(food, 0.0), fastest), p.dt * dilution * s.cells, False


def observe(s):
    return s.cells, s.food


environment = single_agent(
    state=State, params=Params, observation=Box(2), action=Box(1, 0.0, 1.0), reset=reset, step=step, observe=observe, time_limit=500
)
