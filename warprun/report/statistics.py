"""Statistics over few runs, as Agarwal et al. recommend: "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021).

Scores are arrays [runs, ...]: the first axis is resampled, the others are kept. Intervals are percentile bootstrap intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warprun.runs.summary import iqm as iqm

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""Maps scores [..., runs] to [...]."""

RESAMPLES = 2000
"""Bootstrap samples of a number, as rliable takes for its intervals."""
CURVE_RESAMPLES = 500
"""Bootstrap samples of a curve; its band is drawn, not read."""
CONFIDENCE = 0.95
CHUNK = 1 << 22
"""Most resampled scores that are held at once."""


class Interval(NamedTuple):
    """An estimate and the ends of its interval; these are NaN for a single run, which says nothing about its spread."""

    value: float
    low: float
    high: float


class Band(NamedTuple):
    """Estimates along an axis and the ends of their intervals, each [points]."""

    value: Array
    low: Array
    high: Array


def median(scores: Array) -> Array:
    """Return the median over the last axis."""
    return np.asarray(np.median(scores, axis=-1))


def mean(scores: Array) -> Array:
    """Return the mean over the last axis."""
    return np.asarray(np.mean(scores, axis=-1))


def interval(scores: Array, statistic: Statistic) -> Interval:
    """Return a statistic of the scores [runs] of one setting, with its interval."""
    band = intervals(scores[:, None], statistic, RESAMPLES)
    return Interval(float(band.value[0]), float(band.low[0]), float(band.high[0]))


def intervals(scores: Array, statistic: Statistic, resamples: int = CURVE_RESAMPLES) -> Band:
    """Return a statistic of scores [runs, points] at every point, with intervals; all points are resampled alike."""
    columns = scores.T
    value = statistic(columns)
    if len(scores) < 2:
        empty = np.full_like(value, np.nan)
        return Band(value, empty, empty)
    drawn = _generator().integers(len(scores), size=(resamples, len(scores)))
    low, high = np.empty_like(value), np.empty_like(value)
    step = max(1, CHUNK // drawn.size)
    for first in range(0, len(columns), step):
        found = statistic(columns[first : first + step, drawn])  # [points, resamples]
        low[first : first + step], high[first : first + step] = _ends(found)
    return Band(value, low, high)


def performance_profile(scores: Array, thresholds: Array) -> Band:
    """Return the share of the runs whose score [runs] is above each threshold, with intervals (section 4.2)."""
    return intervals((scores[:, None] > thresholds[None, :]).astype(np.float64), mean)


def probability_of_improvement(ones: Sequence[Array], others: Sequence[Array]) -> Interval:
    """Return the probability that a run of one setting has a higher score than a run of another; a tie counts one half (section 4.3).

    `ones` and `others` hold the scores [runs] of each environment, over which the mean is taken. The bootstrap is stratified: runs are
    drawn within each environment and setting.
    """
    generator = _generator()
    values, samples = [], []
    for one, other in zip(ones, others, strict=True):
        wins = np.where(one[:, None] > other[None, :], 1.0, np.where(one[:, None] == other[None, :], 0.5, 0.0))
        values.append(float(wins.mean()))
        # How often each run is drawn; the share of wins is then a form of the counts.
        mine, theirs = (_counts(generator, count) / count for count in wins.shape)
        samples.append(np.einsum("bi,ij,bj->b", mine, wins, theirs, optimize=True))
    alone = all(len(scores) < 2 for scores in (*ones, *others))
    low, high = (np.nan, np.nan) if alone else _ends(np.mean(samples, axis=0))
    return Interval(float(np.mean(values)), float(low), float(high))


def _counts(generator: np.random.Generator, count: int) -> Array:
    """Return how often each of `count` runs is drawn, [resamples, count]."""
    return generator.multinomial(count, np.full(count, 1.0 / count), size=RESAMPLES).astype(np.float64)


def _ends(found: Array) -> Array:
    """Return the ends of the central interval over the last axis; of infinities too."""
    outside = 50.0 * (1.0 - CONFIDENCE)
    # "nearest" does not interpolate between a number and infinity, whose result would be NaN.
    return np.percentile(found, [outside, 100.0 - outside], axis=-1, method="nearest")


def _generator() -> np.random.Generator:
    """Return a generator with a fixed seed: the report of the same runs is the same."""
    return np.random.default_rng(0)
