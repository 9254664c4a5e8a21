"""64 actors on a ring agree on a number: each sees how far its four neighbours are away, and all share one reward."""

from typing import NamedTuple

from warprun.environment import Box, Environment, Group, Phase, float32
from warprun.random import normal, uniform

ACTORS = 64


class Actor(NamedTuple):
    x: float32
    away: float32  # distance from the mean of all


class Params(NamedTuple):
    noise: float = 0.05


def reset(rng):
    return Actor(uniform(rng, 0, -1.0, 1.0), 0.0)


def move(s, action, rng, p):
    return Actor(s.x + action[0] + p.noise * normal(rng, 0), s.away), 0.0, False


def measure(s, actors_sum):
    return Actor(s.x, abs(s.x - actors_sum.x / float32(ACTORS))), 0.0, False


def share(s, actors_sum):
    return s, -actors_sum.away / float32(ACTORS), False


def observe(s, i, actors):
    near, far = (actors.x[(i - 1) % ACTORS], actors.x[(i + 1) % ACTORS]), (actors.x[(i - 2) % ACTORS], actors.x[(i + 2) % ACTORS])
    return near[0] - s.x, near[1] - s.x, far[0] - s.x, far[1] - s.x


environment = Environment(
    groups=(Group("actors", ACTORS, Actor, Box(4), Box(1, -0.5, 0.5), reset, observe, sums=("x", "away")),),
    phases=(Phase("actors", move), Phase("actors", measure), Phase("actors", share)),
    params=Params,
    time_limit=50,
)
