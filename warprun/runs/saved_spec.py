"""The spec of an environment as plain data, the form in which a checkpoint stores it. No torch, no numba."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from warprun.spec import Box, Discrete, Field, GroupSpec, MultiDiscrete, Part, Space, Spec


def to_data(spec: Spec) -> dict[str, object]:
    """Return `spec` as dicts, lists, numbers and texts; infinite bounds are None."""
    groups = [
        {
            "name": group.name,
            "size": group.size,
            "observation": group.observation.size,
            "fields": [[field.first, list(field.shape), field.channels_last, field.kind] for field in group.observation.fields],
            "action": _action_data(group.action),
            "masked": group.masked,
            "leaves": group.leaves,
            "given": group.given and asdict(group.given),
        }
        for group in spec.groups
    ]
    return {"groups": groups, "time_limit": spec.time_limit}


def from_data(data: object) -> Spec:
    """Return the spec that `to_data` described; an observation has no bounds. Raises ValueError."""
    try:
        found: Any = data
        return Spec(tuple(map(_group, found["groups"])), found["time_limit"])
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the spaces of the environment are damaged: {type(error).__name__}") from None


def _action_data(space: Space) -> dict[str, object]:
    if isinstance(space, Discrete):
        return {"discrete": space.n, "start": space.start}
    if isinstance(space, MultiDiscrete):
        return {"multi_discrete": list(space.nvec), "start": list(space.start)}
    return {"box": space.size, "low": _bound(space.low), "high": _bound(space.high)}


def _bound(bound: float | tuple[float, ...]) -> object:
    if isinstance(bound, tuple):
        return [_bound(each) for each in bound]
    return float(bound) if math.isfinite(bound) else None


def _group(data: Mapping[str, Any]) -> GroupSpec:
    leaves = data["leaves"]
    if not isinstance(data["masked"], bool) or not isinstance(leaves, bool):
        raise TypeError("masked and leaves must be true or false")
    action = data["action"]
    space: Space
    if "discrete" in action:
        space = Discrete(action["discrete"], action.get("start", 0))  # runs of 1.0.0 lack it, and their policies count from 0
    elif "multi_discrete" in action:
        space = MultiDiscrete(tuple(action["multi_discrete"]), tuple(action.get("start", ())))
    else:
        space = Box(action["box"], _from_bound(action["low"], -math.inf), _from_bound(action["high"], math.inf))
    fields = (Field(first, tuple(shape), last, kind) for first, shape, last, kind in data.get("fields", []))  # runs of 1.0.0 lack them
    given = data.get("given") and _part(data["given"])  # earlier runs lack it
    return GroupSpec(data["name"], data["size"], Box(data["observation"], fields=tuple(fields)), space, data["masked"], leaves, given)


def _part(data: Mapping[str, Any]) -> Part:
    start, names = tuple(map(int, data["start"])), tuple(map(str, data["names"]))
    return Part(tuple(data["shape"]), tuple(data["choices"]), start, data["image"] is True, names, tuple(map(_part, data["parts"])))


def _from_bound(bound: float | list[float | None] | None, infinite: float) -> float | tuple[float, ...]:
    if isinstance(bound, list):
        return tuple(infinite if each is None else each for each in bound)
    return infinite if bound is None else bound
