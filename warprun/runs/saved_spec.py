"""The spec of an environment as plain data, the form in which a checkpoint stores it. No torch, no numba."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from warprun.spec import Box, Discrete, Field, GroupSpec, MultiDiscrete, Part, Space, Spec

Data: TypeAlias = Mapping[str, Any]
"""A part of a spec, as it was read from a file."""


def to_data(spec: Spec) -> dict[str, object]:
    """Return `spec` as dicts, lists, numbers and texts; infinite bounds are None."""
    groups = [
        {
            "name": group.name,
            "size": group.size,
            "observation": group.observation.size,
            "fields": [[field.first, list(field.shape), field.channels_last, field.kind] for field in group.observation.fields],
            "action": WRITE[type(group.action)](group.action),
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


def _bound(bound: float | tuple[float, ...]) -> object:
    if isinstance(bound, tuple):
        return [_bound(each) for each in bound]
    return float(bound) if math.isfinite(bound) else None


def _group(data: Data) -> GroupSpec:
    leaves = data["leaves"]
    if not isinstance(data["masked"], bool) or not isinstance(leaves, bool):
        raise TypeError("masked and leaves must be true or false")
    action = data["action"]
    space = READ[next((key for key in READ if key in action), "")](action)
    fields = (Field(first, tuple(shape), last, kind) for first, shape, last, kind in data.get("fields", []))  # runs of 1.0.0 lack them
    given = data.get("given") and _part(data["given"])  # earlier runs lack it
    return GroupSpec(data["name"], data["size"], Box(data["observation"], fields=tuple(fields)), space, data["masked"], leaves, given)


def _part(data: Data) -> Part:
    start, names = tuple(map(int, data["start"])), tuple(map(str, data["names"]))
    return Part(tuple(data["shape"]), tuple(data["choices"]), start, data["image"] is True, names, tuple(map(_part, data["parts"])))


def _from_bound(bound: float | list[float | None] | None, infinite: float) -> float | tuple[float, ...]:
    if isinstance(bound, list):
        return tuple(infinite if each is None else each for each in bound)
    return infinite if bound is None else bound


WRITE: dict[type[Space], Callable[[Any], dict[str, object]]] = {
    Discrete: lambda space: {"discrete": space.n, "start": space.start},
    MultiDiscrete: lambda space: {"multi_discrete": list(space.nvec), "start": list(space.start)},
    Box: lambda space: {"box": space.size, "low": _bound(space.low), "high": _bound(space.high)},
}
READ: dict[str, Callable[[Data], Space]] = {
    "discrete": lambda data: Discrete(data["discrete"], data.get("start", 0)),  # runs of 1.0.0 lack it, and their policies count from 0
    "multi_discrete": lambda data: MultiDiscrete(tuple(data["multi_discrete"]), tuple(data.get("start", ()))),
    "box": lambda data: Box(data["box"], _from_bound(data["low"], -math.inf), _from_bound(data["high"], math.inf)),
}
"""The key that only this space has -> the space."""
