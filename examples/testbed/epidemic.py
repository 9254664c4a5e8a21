"""Choose a level of measures in each week of an epidemic: measures cost, and so do infections, above all those without a bed.

Kermack and McKendrick, "A contribution to the mathematical theory of epidemics", Proc. R. Soc. A 115, 1927 (SIR). The numbers of this file
are its own.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, single_agent
from warprun.math import exp, log, maximum
from warprun.random import uniform

LEVELS, DAYS = 4, 7


class State(NamedTuple):
    healthy: float32  # who can be infected, of a population of 1e6
    infected: float32
    contacts: float32  # infections by one person per day, at first; not observed


class Params(NamedTuple):
    people: float = 1.0e6
    recover: float = 0.15  # 1/day
    effect: float = 0.25  # share of contacts that each level prevents
    beds: float = 3.0e4
    infection: float = 1.0  # cost of each
    overload: float = 1.0  # cost of an infected person without a bed, per day
    measures: float = 8.0e3  # cost of the square of the level, per day


def reset(rng):
    return State(1.0e6, exp(uniform(rng, 0, log(1.0e2), log(1.0e4))), uniform(rng, 1, 0.3, 0.45))


def step(s, action, p):
    level = float32(action)
    healthy, infected, cost = s.healthy, s.infected, 0.0
    for _ in range(DAYS):
        new = s.contacts * (1.0 - p.effect * level) * infected * healthy / p.people
        healthy -= new
        infected += new - p.recover * infected
        cost += p.infection * new + p.overload * maximum(infected - p.beds, 0.0) + p.measures * level * level
    return State(healthy, infected, s.contacts), -cost, False


def observe(s):
    return s.healthy, s.infected


environment = single_agent(
    state=State, params=Params, observation=Box(2), action=Discrete(LEVELS), reset=reset, step=step, observe=observe, time_limit=52
)
