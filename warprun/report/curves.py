"""Learning curves of several runs on a common grid, with bands over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from warprun.report.compare import Comparison, Setting
from warprun.report.runs import Curve
from warprun.report.statistics import Array, Band, intervals, iqm

POINTS = 200
AXES = ("env_steps", "wall_s")
"""What returns are drawn against."""


class Banded(NamedTuple):
    """The interquartile mean of the curves of a setting, with its band, on a grid."""

    setting: Setting
    grid: Array
    band: Band


def banded(comparison: Comparison, axis: str, log: bool) -> list[Banded]:
    """Return the band of every setting over `axis`, one of AXES."""
    return [_band(setting, axis, log) for setting in comparison.settings]


def _band(setting: Setting, axis: str, log: bool) -> Banded:
    grid, values = on_grid(setting.curves(), axis, log)
    return Banded(setting, grid, intervals(values, iqm))


def on_grid(curves: Sequence[Curve], axis: str, log: bool = False, points: int = POINTS) -> tuple[Array, Array]:
    """Return a grid [points] and the returns of the curves on it, [curves, points].

    The grid begins where every run has a value and ends where the last run ends. Between two values returns are interpolated linearly.
    A run that has ended, such as one that is solved, keeps its last value.
    """
    places: list[Array] = [getattr(curve, axis) for curve in curves]
    first, last = max(place[0] for place in places), max(place[-1] for place in places)
    if last <= first:
        grid = np.array([first])
    elif log and first > 0:
        grid = np.geomspace(first, last, points)
    else:
        grid = np.linspace(first, last, points)
    return grid, np.array([np.interp(grid, place, curve.value) for place, curve in zip(places, curves, strict=True)])


def csv_rows(found: Sequence[Banded], axis: str) -> list[list[object]]:
    """Return the rows of curves.csv: env, compared values, axis, place, interquartile mean, low, high."""
    return [
        [each.setting.env, *each.setting.values, axis, *map(float, point)]
        for each in found
        for point in zip(each.grid, *each.band, strict=True)
    ]
