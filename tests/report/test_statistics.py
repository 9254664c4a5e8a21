"""Statistics over runs: against hand-worked values and scipy."""

import numpy as np
import pytest
from scipy import stats

from warprun.report.statistics import (
    interval,
    intervals,
    iqm,
    mean,
    median,
    performance_profile,
    probability_of_improvement,
)


def trimmed(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the interquartile mean."""
    return stats.trim_mean(scores, 0.25, axis=axis)


ORACLES = {mean: np.mean, median: np.median, iqm: trimmed}


@pytest.mark.parametrize("count", range(1, 13))
@pytest.mark.parametrize("statistic", ORACLES)
def test_statistics_are_those_of_numpy_and_scipy(statistic, count: int) -> None:
    scores = np.random.default_rng(count).normal(size=(count, 3)) ** 3
    assert intervals(scores, statistic, 2).value == pytest.approx(ORACLES[statistic](scores, axis=0), rel=1e-12)


@pytest.mark.parametrize("statistic", ORACLES)
def test_intervals_are_those_of_scipys_percentile_bootstrap(statistic) -> None:
    scores = np.random.default_rng(3).gamma(2.0, 10.0, size=20)
    expected = stats.bootstrap((scores,), ORACLES[statistic], method="percentile", n_resamples=20_000, rng=np.random.default_rng(1))
    found = interval(scores, statistic)
    width = expected.confidence_interval.high - expected.confidence_interval.low
    assert found.value == pytest.approx(float(ORACLES[statistic](scores)))
    # The ends of 2000 resamples scatter by a few percent of the width.
    assert found.low == pytest.approx(expected.confidence_interval.low, abs=0.06 * width)
    assert found.high == pytest.approx(expected.confidence_interval.high, abs=0.06 * width)


@pytest.mark.parametrize("statistic", ORACLES)
@pytest.mark.parametrize("count", [8, 33_000])
def test_ends_are_those_of_resampled_scores(statistic, count: int) -> None:
    scores = np.round(np.random.default_rng(2).normal(size=(count, 2)), 2)  # with ties
    drawn = np.random.default_rng(0).integers(count, size=(40, count))
    found = ORACLES[statistic](np.sort(scores, axis=0)[drawn], axis=1)
    band = intervals(scores, statistic, 40)
    low, high = np.percentile(found, [2.5, 97.5], axis=0, method="nearest")
    assert band.low == pytest.approx(low, rel=1e-9) and band.high == pytest.approx(high, rel=1e-9)


def test_what_has_no_weight_does_not_count() -> None:
    scores = np.array([10.0, 11.0, 12.0, 1e100])
    for statistic in (median, iqm):
        assert interval(scores, statistic)[:2] == (11.5, 10.0)


def test_infinite_scores_keep_finite_ends() -> None:
    scores = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, np.inf])
    found = interval(scores, median)
    assert found.value == 4.5 and np.isfinite(found.low) and not np.isnan(found.high)
    assert interval(scores, mean).value == np.inf and interval(scores[[7, 7]], median) == (np.inf, np.inf, np.inf)
    assert interval(scores[[0, 1, 7, 7]], median).value == np.inf  # the mean of 2 and infinity
    assert all(map(np.isnan, interval(np.array([1.0, np.nan]), median)))


def test_profiles_by_hand() -> None:
    profile = performance_profile(np.array([1.0, 2.0, 2.0, 4.0]), np.array([0.0, 1.0, 2.0, 3.9, 4.0]))
    assert profile.value.tolist() == [1.0, 0.75, 0.25, 0.25, 0.0]
    assert profile.low[0] == profile.high[0] == 1.0 and profile.high[4] == 0.0
    assert profile.low[1] < 0.75 < profile.high[1]


def test_probability_of_improvement_is_the_u_statistic_of_mann_and_whitney() -> None:
    generator = np.random.default_rng(4)
    one, other = generator.integers(0, 6, 9).astype(float), generator.integers(0, 5, 7).astype(float)  # with ties
    expected = stats.mannwhitneyu(one, other).statistic / (9 * 7)
    assert probability_of_improvement([one], [other]).value == pytest.approx(expected, rel=1e-12)
    assert probability_of_improvement([other], [one]).value == pytest.approx(1 - expected, rel=1e-12)


def test_probability_of_improvement_by_hand() -> None:
    # 2 > 1 and 2 = 2 and 3 > 1, 2: (1 + 0.5 + 1 + 1) / 4; in the other environment no run is better.
    found = probability_of_improvement([np.array([2.0, 3.0]), np.array([0.0])], [np.array([1.0, 2.0]), np.array([5.0, 6.0])])
    assert found.value == pytest.approx((3.5 / 4 + 0.0) / 2)
    alone = probability_of_improvement([np.array([2.0])], [np.array([1.0])])
    assert alone.value == 1.0 and np.isnan(alone.low)


def test_the_bootstrap_of_improvement_draws_runs_of_both_settings() -> None:
    generator = np.random.default_rng(6)
    one, other = generator.normal(0.5, 1.0, 12), generator.normal(0.0, 1.0, 9)
    found = probability_of_improvement([one], [other])

    def wins(mine, theirs):
        return np.mean(mine[:, None] > theirs[None, :])

    draws = [wins(generator.choice(one, 12), generator.choice(other, 9)) for _ in range(4000)]
    assert found.low == pytest.approx(np.percentile(draws, 2.5), abs=0.03)
    assert found.high == pytest.approx(np.percentile(draws, 97.5), abs=0.03)
