"""Names of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def by_group(found: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """Return the metrics of all groups in one dict: `kind/name` for a single group, `kind/GROUP/name` for several."""
    if len(found) == 1:
        return dict(next(iter(found.values())))
    named = {}
    for group, metrics in found.items():
        for name, value in metrics.items():
            kind, _, rest = name.partition("/")
            named[f"{kind}/{group}/{rest}"] = value
    return named
