"""Give one invalid number, at the environment, step, group and actor that the parameters choose."""

from typing import NamedTuple

import numpy as np

from warprun.environment import Box, Discrete, Environment, Group, MultiDiscrete, Phase, float32, int32
from warprun.random import uniform

REWARD_NAN, REWARD_INF, OBS_NAN, OBS_INF, MASK, MASK_LATER = range(1, 7)
NAN, INF = float32(np.nan), float32(np.inf)


class State(NamedTuple):
    x: float32
    flaw: int32  # kind of fault in this step


class Params(NamedTuple):
    flaw: int = 0
    environment: int = 0
    step: int = 0  # the faulty step, counted from 1
    group: int = 0
    actor: int = 0
    again: bool = False  # repeat the fault every `step` steps


def flaw_of(rng, p, group, i):
    taken = int32(rng.step) + int32(1)
    due = taken % max(p.step, 1) == 0 if p.again else taken == p.step
    return int32(p.flaw) if due and int32(rng.environment) == p.environment and group == p.group and i == p.actor else int32(0)


def reward_of(s):
    return NAN if s.flaw == REWARD_NAN else INF if s.flaw == REWARD_INF else s.x


def reset(rng):
    return State(uniform(rng, 0, 0.1, 0.9), int32(0))


def step_first(s, rng, p, i):
    s = State(s.x, flaw_of(rng, p, 0, i))
    return s, reward_of(s), False


def step_second(s, rng, p, i):
    s = State(s.x, flaw_of(rng, p, 1, i))
    return s, reward_of(s), False


def step_third(s, rng, p, i):
    s = State(s.x, flaw_of(rng, p, 2, i))
    return s, reward_of(s), False


def observe(s):
    return s.x, NAN if s.flaw == OBS_NAN else -INF if s.flaw == OBS_INF else s.x


def fill(s, out):
    out[0] = s.x
    out[1] = s.x
    out[2] = NAN if s.flaw == OBS_NAN else -INF if s.flaw == OBS_INF else s.x


def allow(s):
    return s.flaw != MASK


def allow_choices(s, k):
    return s.flaw != MASK and (k < 2 or s.flaw != MASK_LATER)


SEEN = Box(2)
ALONE = {"discrete": Discrete(2), "box": Box(1, -1.0, 1.0)}


def environment(actions="discrete"):
    """Make an environment of one actor, or of three groups ("groups")."""
    if actions in ALONE:
        group = Group("agent", 1, State, SEEN, ALONE[actions], reset, observe)
        return Environment((group,), (Phase("agent", step_first),), Params, time_limit=5)
    groups = (
        Group("miners", 3, State, SEEN, Discrete(2), reset, observe, allow),
        Group("planner", 1, State, Box(3), MultiDiscrete((2, 3)), reset, fill, allow_choices),
        Group("traders", 2, State, SEEN, Box(2, -1.0, 1.0), reset, observe),
    )
    return Environment(
        groups, (Phase("miners", step_first), Phase("planner", step_second), Phase("traders", step_third)), Params, time_limit=5
    )
