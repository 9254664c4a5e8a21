"""Walkers who leave the walk one by one: actors that leave episodes, and an index that tells each how many walk in its cell.

A walker stays until its patience is used up; the last one may wait longer than the time limit. Every step gives reward 1, also after a
walker has left: the engine must not count it.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, Environment, Group, Index, Phase, float32, int32
from warprun.random import randint, uniform

WALKERS = 5
CELLS = 4


class Walker(NamedTuple):
    x: float32  # 0 to 1
    patience: int32  # steps until it leaves


class Guide(NamedTuple):
    steps: int32


def begin(rng):
    return Walker(uniform(rng, 0, 0.0, 1.0), 1 + randint(rng, 1, 9))


def begin_guiding():
    return Guide(int32(0))


def walk(s, action, rng, cells):
    x = s.x + 0.1 * (float32(action) - 1.0) + uniform(rng, 0, -0.05, 0.05)
    return Walker(min(max(x, 0.0), 0.999), max(s.patience - 1, 0)), 1.0, False


def guide(s, action, walkers_sum):
    return Guide(s.steps + action), walkers_sum.patience, walkers_sum.patience == 0.0


def cell(s):
    return int32(s.x * float32(CELLS)) if s.patience > 0 else -1


def look(s, i, cells):
    """Tell x, how many walk in the same cell, the sum of their x, and the number of the first of them."""
    own = int32(s.x * float32(CELLS))
    total, first = 0.0, -1.0
    for at in range(cells.first[own], cells.first[own + 1]):
        total += cells.x[at]
        if first < 0.0:
            first = float32(cells.actor[at])
    return s.x, float32(cells.first[own + 1] - cells.first[own]), total, first


def overlook(cells):
    return float32(cells.first[CELLS]), float32(cells.first[1]), float32(cells.first[2])


environment = Environment(
    groups=(
        Group("walkers", WALKERS, Walker, Box(4), Discrete(3), begin, look, sums=("patience",), alive="patience"),
        Group("guides", 1, Guide, Box(3), Discrete(2), begin_guiding, overlook),
    ),
    phases=(Phase("walkers", walk), Phase("guides", guide)),
    time_limit=5,
    indices=(Index("cells", ("walkers",), CELLS, cell, ("x", "patience")),),
)
