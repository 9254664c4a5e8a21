"""Find out which of four kinds a sample is: two tests, then a verdict. An episode has three steps; only the verdict is rewarded."""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.random import randint, uniform

KINDS, STEPS = 4, 3
# Test k is positive for kind j if bit j of POSITIVE[k] is 1.
POSITIVE = (0b0011, 0b0101, 0b0001, 0b1000)


class State(NamedTuple):
    kind: int32  # not observed
    first: int32  # test, -1 before it
    is_first: int32  # its result, 0 before it, 1 or -1
    second: int32
    is_second: int32


class Params(NamedTuple):
    right: float = 0.95  # probability that a test is right
    prize: float = 10.0


def reset(rng):
    return State(int32(randint(rng, 0, KINDS)), int32(-1), int32(0), int32(-1), int32(0))


def step(s, action, rng, t, p):
    positive = ((POSITIVE[action] >> s.kind) & 1) == 1
    right = uniform(rng, 0, 0.0, 1.0) < p.right
    result = 1 if positive == right else -1
    if t == 0:
        return State(s.kind, int32(action), int32(result), s.second, s.is_second), 0.0, False
    if t == 1:
        return State(s.kind, s.first, s.is_first, int32(action), int32(result)), 0.0, False
    return s, p.prize if action == s.kind else 0.0, True


def observe(s):
    return float32(s.first), float32(s.is_first), float32(s.second), float32(s.is_second)


environment = single_agent(
    state=State, params=Params, observation=Box(4), action=Discrete(KINDS), reset=reset, step=step, observe=observe, time_limit=STEPS
)
