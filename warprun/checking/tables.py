"""Digests of tables, to see whether they are made anew each time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from warprun.checking.findings import Problem


def digests(tables: Any) -> dict[str, str]:
    """Return a digest of every table; none if there are no tables."""
    if tables is None:
        return {}
    return {
        name: hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest() for name, value in zip(tables._fields, tables, strict=True)
    }


def changing(first: Mapping[str, str], other: Mapping[str, str], when: str) -> Iterator[Problem]:
    """Find tables that differ between two times that they were made."""
    for name in first:
        if first[name] != other.get(name):
            yield Problem(f"table {name!r} has other values {when}; make it from files and options alone, random numbers from a fixed seed")
