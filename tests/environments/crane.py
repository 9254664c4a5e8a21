"""Three cranes on one rail: Box actions with mixed bounds, no parameters, no time limit."""

from typing import NamedTuple

from warprun.environment import Box, Environment, Group, Phase, float32, int32
from warprun.random import uniform

CRANES = 3


class Crane(NamedTuple):
    x: float32
    height: float32
    moves: int32


def reset(rng, i):
    return Crane(float32(i) + uniform(rng, 0, -0.25, 0.25), float32(0.0), int32(0))


def move(s, action, rng, i, cranes):
    ahead = cranes.x[(i + 1) % CRANES] - s.x
    x = s.x + 0.1 * action[0] + (0.01 * ahead if i < CRANES - 1 else 0.0)
    height = s.height + 0.1 * action[1]
    slipped = uniform(rng, 0, 0.0, 1.0) < 0.02
    return Crane(x, float32(0.0) if slipped else height, int32(s.moves + 1)), -abs(height), abs(height) > 0.6


def observe(s):
    return s.x, s.height, float32(s.moves)


group = Group("cranes", CRANES, Crane, Box(3), Box(2, (-0.5, float("-inf")), (2.0, float("inf"))), reset, observe)
environment = Environment((group,), (Phase("cranes", move),))
