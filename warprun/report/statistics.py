"""Statistics over few runs, as Agarwal et al. recommend: "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021).

Scores are arrays [runs, ...]: the first axis is resampled, the others are kept. Intervals are percentile bootstrap intervals. All
statistics are weighted means of the sorted scores, so scores are sorted once, and a resample is how often each is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.integer]
Statistic = Callable[[Counts, int], Array]
"""Maps how many of `count` sorted scores come no later than some score to the share of the weight that these have, 0 to 1."""

RESAMPLES = 2000
"""Bootstrap samples of a number, as rliable takes for its intervals."""
CURVE_RESAMPLES = 500
"""Bootstrap samples of a curve; its band is drawn, not read."""
CONFIDENCE = 0.95


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


def median(places: Counts, count: int) -> Array:
    """Return the shares of the median: one score, or the mean of two."""
    return np.clip((places - (count - 1) // 2) / (2 - count % 2), 0.0, 1.0)


def mean(places: Counts, count: int) -> Array:
    """Return the shares of the mean."""
    return places / count


def iqm(places: Counts, count: int) -> Array:
    """Return the shares of the interquartile mean: without the lowest and the highest floor(count / 4) scores (section 4.3)."""
    cut = count // 4
    return np.clip((places - cut) / (count - 2 * cut), 0.0, 1.0)


def interval(scores: Array, statistic: Statistic) -> Interval:
    """Return a statistic of the scores [runs] of one setting, with its interval."""
    band = intervals(scores[:, None], statistic, RESAMPLES)
    return Interval(float(band.value[0]), float(band.low[0]), float(band.high[0]))


def intervals(scores: Array, statistic: Statistic, resamples: int = CURVE_RESAMPLES) -> Band:
    """Return a statistic of scores [runs, points] at every point, with intervals; all points are resampled alike.

    Scores may be +infinity; where one is NaN the results are NaN.
    """
    count, points = scores.shape
    once = np.ones((count, 1), np.int64)
    drawn = _generator().integers(count, size=(resamples, count))
    smallest = np.int16 if count <= np.iinfo(np.int16).max else np.int32  # there may be millions
    times = np.stack([np.bincount(each, minlength=count) for each in drawn], axis=1).astype(smallest)
    band = Band(*np.full((3, points), np.nan))
    for point, order in enumerate(np.argsort(scores, axis=0).T):
        ranked = scores[order, point]
        if not np.isnan(ranked[-1]):
            band.value[point] = _estimates(ranked, once, statistic)[0]
            if count > 1:
                band.low[point], band.high[point] = _ends(_estimates(ranked, times[order], statistic))
    return band


def _estimates(ranked: Array, times: Counts, statistic: Statistic) -> Array:
    """Return a statistic of samples of sorted scores [runs]; `times` [runs, samples]: how often each score is in a sample."""
    finite = int(np.searchsorted(ranked, np.inf))
    if not finite:
        return np.full(times.shape[1], np.inf)
    shares = statistic(np.cumsum(times[:finite], axis=0, dtype=times.dtype), len(ranked))
    found = ranked[:finite] @ np.diff(shares, axis=0, prepend=0.0)
    return np.where(shares[-1] < 1.0, np.inf, found)


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
