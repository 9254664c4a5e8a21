"""Five boats share one stock of fish; an authority sets how often they may go out. Two groups, two policies."""

from typing import NamedTuple

from warprun.environment import Box, Discrete, Environment, Group, Phase, float32, int32
from warprun.random import uniform

BOATS = 5


class Boat(NamedTuple):
    catch: float32  # of this month, as a share of all that the sea can hold


class Authority(NamedTuple):
    stock: float32  # fish in the sea, 1 is all it can hold
    quota: int32  # trips that each boat may make in a month


class Params(NamedTuple):
    growth: float = 0.3  # of the stock, 1/month
    efficiency: float = 0.02  # share of the stock that one trip takes
    cost: float = 0.004  # of a trip, in the unit of the catch


def reset_boat():
    return Boat(0.0)


def reset_authority(rng):
    return Authority(uniform(rng, 0, 0.3, 0.9), int32(3))


def set_quota(s, action):
    return Authority(s.stock, int32(action)), 0.0, False


def fish(action, p, authority):
    trips = float32(action)
    catch = p.efficiency * trips * authority.stock
    return Boat(catch), 10.0 * (catch - p.cost * trips), False


def grow(s, p, boats_sum):
    stock = s.stock + p.growth * s.stock * (1.0 - s.stock) - boats_sum.catch
    gone = stock < 0.05
    return Authority(stock, s.quota), 10.0 * boats_sum.catch - (10.0 if gone else 0.0), gone


def see_boat(s, i, boats, authority):
    neighbour = boats.catch[(i + 1) % BOATS]
    return authority.stock, float32(authority.quota), s.catch, neighbour


def may_make(k, authority):
    return k <= authority.quota


def see_authority(s, boats_sum):
    return s.stock, float32(s.quota), boats_sum.catch


environment = Environment(
    groups=(
        Group("boats", BOATS, Boat, Box(4), Discrete(4), reset_boat, see_boat, mask=may_make, sums=("catch",)),
        Group("authority", 1, Authority, Box(3), Discrete(4), reset_authority, see_authority),
    ),
    phases=(Phase("authority", set_quota), Phase("boats", fish), Phase("authority", grow)),
    params=Params,
    time_limit=120,
)
