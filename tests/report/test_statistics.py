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


@pytest.mark.parametrize("count", range(1, 13))
def test_iqm_is_the_trimmed_mean_of_scipy(count: int) -> None:
    scores = np.random.default_rng(count).normal(size=(3, count)) ** 3
    assert iqm(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=-1), rel=1e-12)


@pytest.mark.parametrize("statistic", [mean, median, iqm])
def test_intervals_are_those_of_scipys_percentile_bootstrap(statistic) -> None:
    scores = np.random.default_rng(3).gamma(2.0, 10.0, size=20)
    expected = stats.bootstrap((scores,), statistic, method="percentile", n_resamples=20_000, rng=np.random.default_rng(1))
    found = interval(scores, statistic)
    width = expected.confidence_interval.high - expected.confidence_interval.low
    assert found.value == pytest.approx(float(statistic(scores)))
    # The ends of 2000 resamples scatter by a few percent of the width.
    assert found.low == pytest.approx(expected.confidence_interval.low, abs=0.06 * width)
    assert found.high == pytest.approx(expected.confidence_interval.high, abs=0.06 * width)


def test_infinite_scores_keep_finite_ends() -> None:
    found = interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, np.inf]), median)
    assert found.value == 4.5 and np.isfinite(found.low) and not np.isnan(found.high)


def test_chunks_do_not_change_a_band(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(2).normal(size=(7, 40))
    whole = intervals(scores, iqm)
    monkeypatch.setattr("warprun.report.statistics.CHUNK", 1)
    for one, other in zip(whole, intervals(scores, iqm), strict=True):
        assert np.array_equal(one, other)


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
