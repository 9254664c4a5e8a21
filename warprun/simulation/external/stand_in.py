"""An environment that does nothing: the kernels that sample its actions serve every environment with the same actions."""

from __future__ import annotations

from typing import NamedTuple

from warprun.environment import Box, Environment, Group, Phase, float32
from warprun.spec import GroupSpec


class Nothing(NamedTuple):
    """The state of an environment that stands in for others."""

    x: float32


def reset():
    return Nothing(float32(0.0))


def step(s):
    return s, 0.0, False


def observe(s):
    return (s.x,)


def mask(s):
    return True


def stand_in(group: GroupSpec) -> Environment:
    """Return an environment with the actions and the mask of `group`, one actor, and one observed number."""
    actors = Group(group.name, 1, Nothing, Box(1), group.action, reset, observe, mask if group.masked else None)
    return Environment((actors,), (Phase(group.name, step),))
