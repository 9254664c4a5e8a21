"""Statistics over few runs, as Agarwal et al. recommend: "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021).

Scores are arrays [runs, ...]: the first axis is resampled, the others are kept. Intervals are percentile bootstrap intervals. All
statistics are weighted means of the sorted scores, so scores are sorted once, and a resample is how often each rank is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
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
    ranked, count = np.sort(scores, axis=0).T, len(scores)
    value = _estimates(ranked, _weights(np.ones((1, count), np.int32), statistic))[:, 0]
    low, high = _ends(_estimates(ranked, _resampled(count, statistic, resamples))) if count > 1 else np.full((2, *value.shape), np.nan)
    unknown = np.isnan(ranked[:, -1])
    return Band(*(np.where(unknown, np.nan, each) for each in (value, low, high)))


@lru_cache(maxsize=4)
def _resampled(count: int, statistic: Statistic, resamples: int) -> Array:
    """Return the weights [count, resamples] of sorted scores in resamples, which draw ranks instead of runs.

    Both are equally likely, and weights of ranks are the same at all points, and for all settings with as many runs.
    """
    drawn = _generator().integers(count, size=(resamples, count))
    return _weights(np.stack([np.bincount(each, minlength=count) for each in drawn]), statistic)


def _weights(times: Counts, statistic: Statistic) -> Array:
    """Return the weights [count, samples] of sorted scores; `times` [samples, count]: how often each is in a sample."""
    return np.diff(statistic(np.cumsum(times, axis=1, dtype=np.int32), times.shape[1]), axis=1, prepend=0.0).T


def _estimates(ranked: Array, weights: Array) -> Array:
    """Return a statistic of samples of sorted scores [points, runs], [points, samples]; `weights` [runs, samples] of each rank."""
    infinite = np.isposinf(ranked)
    found: Array = np.where(infinite, 0.0, ranked) @ weights
    if infinite.any():
        found[infinite @ weights > 0.0] = np.inf
    return found


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
