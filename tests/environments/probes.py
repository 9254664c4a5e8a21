"""Probe environments whose values are known exactly. Each adds one thing that an agent can get wrong.

Source: Andy Jones, "Debugging reinforcement learning systems without the agonizing pain", 2021.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, Environment, Group, Phase, float32, int32, single_agent
from warprun.random import bits


class Sign(NamedTuple):
    sign: float32  # -1 or 1 at random


class Count(NamedTuple):
    steps: int32


class Units(NamedTuple):
    offset: float = 0.0
    scale: float = 1.0


class Coin(NamedTuple):
    tails: int32  # the side that this player shows
    reward: float32


def flip(rng):
    return Sign(1.0 if bits(rng, 0) & 1 else -1.0)


def begin():
    return Count(int32(0))


def see_nothing(s):
    return (0.0,)


def see_sign(s):
    return (s.sign,)


def see_count(s):
    return (float32(s.steps),)


def give_one(s):
    return s, 1.0, True


def give_sign(s):
    return s, s.sign, True


def give_late(s):
    return Count(int32(s.steps + 1)), float32(s.steps), s.steps == 1


def want_one(s, action):
    return s, 2.0 * float32(action) - 1.0, True


def want_sign(s, action):
    return s, s.sign * (2.0 * float32(action) - 1.0), True


def give_forever(s):
    return s, 1.0, False


def want_half(s, action):
    return s, -(action[0] - 0.5) * (action[0] - 0.5), True


def want_half_sign(s, action):
    return s, -(action[0] - 0.5 * s.sign) * (action[0] - 0.5 * s.sign), True


def pull(s, action, p):
    return s, p.offset + p.scale * float32(action), True


def see_in_units(s, p):
    return (p.offset + p.scale * s.sign,)


def show_nothing():
    return Coin(int32(0), 0.0)


def show(s, action):
    return Coin(int32(action), 0.0), 0.0, False


def show_and_win_where_equal(s, action, odd):
    reward = 1.0 if action == odd.tails else -1.0
    return Coin(int32(action), reward), reward, False


def win_where_different(s, even):
    return s, -even.reward, True


ONE, TWO, LEVER = Discrete(1), Discrete(2), Box(1, -1.0, 1.0)


def _probe(state: type, reset, observe, step, action: Discrete | Box = ONE, time_limit: int | None = None) -> Environment:
    return single_agent(state=state, observation=Box(1), action=action, reset=reset, step=step, observe=observe, time_limit=time_limit)


PROBES = {
    "1 a value": _probe(Count, begin, see_nothing, give_one),
    "2 a value that depends": _probe(Sign, flip, see_sign, give_sign),
    "3 a value to come": _probe(Count, begin, see_count, give_late),
    "4 an action": _probe(Count, begin, see_nothing, want_one, TWO),
    "5 an action that depends": _probe(Sign, flip, see_sign, want_sign, TWO),
    "6 no end but the time limit": _probe(Count, begin, see_nothing, give_forever, time_limit=8),
    "4 a real action": _probe(Count, begin, see_nothing, want_half, LEVER),
    "5 a real action that depends": _probe(Sign, flip, see_sign, want_half_sign, LEVER),
}

BANDIT = single_agent(state=Count, observation=Box(1), action=Discrete(3), reset=begin, step=pull, observe=see_nothing, params=Units)
"""Three arms: the rewards are offset, offset + scale and offset + 2 scale."""
SIGN_IN_UNITS = single_agent(state=Sign, observation=Box(1), action=TWO, reset=flip, step=want_sign, observe=see_in_units, params=Units)
"""Probe 5 with the sign observed in other units: offset - scale or offset + scale."""
MATCHING_PENNIES = Environment(
    groups=tuple(Group(name, 1, Coin, Box(1), TWO, show_nothing, see_nothing) for name in ("odd", "even")),
    phases=(Phase("odd", show), Phase("even", show_and_win_where_equal), Phase("odd", win_where_different)),
)
"""Both players choose a side at the same time; even wins 1 from odd if the sides are equal. In the only equilibrium each side has
probability 1/2."""
