"""A `Spec` as plain data, the form in which a checkpoint stores it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from warprun.spec import Box, Discrete, GroupSpec, MultiDiscrete, Space, Spec


def to_data(spec: Spec) -> dict[str, object]:
    """Return `spec` as dicts, lists, numbers and texts; infinite bounds are None."""
    groups = [
        {
            "name": group.name,
            "size": group.size,
            "observation": group.observation.size,
            "action": _action_data(group.action),
            "masked": group.masked,
            "leaves": group.leaves,
        }
        for group in spec.groups
    ]
    return {"groups": groups, "time_limit": spec.time_limit}


def from_data(data: object) -> Spec:
    """Return the spec that `to_data` described; an observation has no bounds. Raises ValueError."""
    try:
        found: Any = data
        groups = tuple(_group(each) for each in found["groups"])
        return Spec(groups, found["time_limit"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the spaces of the environment are damaged: {type(error).__name__}") from None


def _action_data(space: Space) -> dict[str, object]:
    if isinstance(space, Discrete):
        return {"discrete": space.n}
    if isinstance(space, MultiDiscrete):
        return {"multi_discrete": list(space.nvec)}
    return {"box": space.size, "low": _bound(space.low), "high": _bound(space.high)}


def _bound(bound: float | Sequence[float]) -> object:
    if isinstance(bound, tuple):
        return [_bound(each) for each in bound]
    number = float(bound)  # type: ignore[arg-type]
    return number if math.isfinite(number) else None


def _group(data: Mapping[str, Any]) -> GroupSpec:
    leaves = data.get("leaves", False)  # runs of before 2026-11-23 lack it
    if not isinstance(data["masked"], bool) or not isinstance(leaves, bool):
        raise TypeError("masked and leaves must be true or false")
    return GroupSpec(data["name"], data["size"], Box(data["observation"]), _action(data["action"]), data["masked"], leaves)


def _action(data: Mapping[str, Any]) -> Space:
    if "discrete" in data:
        return Discrete(data["discrete"])
    if "multi_discrete" in data:
        return MultiDiscrete(tuple(data["multi_discrete"]))
    return Box(data["box"], _from_bound(data["low"], -math.inf), _from_bound(data["high"], math.inf))


def _from_bound(bound: Any, infinite: float) -> float | tuple[float, ...]:
    if isinstance(bound, list):
        return tuple(infinite if each is None else each for each in bound)
    found: float = infinite if bound is None else bound
    return found
