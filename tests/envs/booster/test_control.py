"""Regulators: their formulas, optimality of gains, and that a regulated episode is the environment's own."""

import numpy as np
import pytest

from tests.envs.booster.helpers import STEPS, engine, held
from tests.scripts import load
from warprun.envs.booster import control
from warprun.envs.booster.control import Episodes, Now, Pid
from warprun.envs.booster.model import Params
from warprun.spec import Box, Discrete

RESULTS = load("compare.booster")
FREE = Params()._replace(edge_cost=0.0)


class Window:
    """Tables of a window that is never left."""

    low, high, compat, steps = -9.0, 9.0, 0, STEPS


def episodes(disturbance):
    zero = np.zeros(len(disturbance))
    return Episodes(zero, zero, zero, zero, disturbance)


def test_published_gains():
    now = Now(3, *(np.array([value]) for value in (0.0, 0.0, 0.2, -0.1, 0.5)))
    assert Pid()(now) == pytest.approx(-0.1 * 0.2 - 7.535e-5 * 0.5)
    assert Pid(0.3, 0.02, 0.1)(now) == pytest.approx(-0.3 * 0.2 - 0.02 * 0.5 - 0.1 * 0.3)
    assert control.recorded(now) == pytest.approx(-0.0908 * 0.2)


def test_the_integral_counts_from_the_start_of_the_episode():
    d = np.random.default_rng(0).normal(0, 0.05, (2, 6))
    wanted = []

    def regulator(now):
        wanted.append(now.total.copy())
        return Pid(0.0, 0.01)(now)

    course = control.run(regulator, episodes(d), FREE, Window)
    np.testing.assert_allclose(np.array(wanted).T, np.cumsum(np.c_[np.zeros(2), course.iminer[:, :-1]], 1), atol=1e-12)
    np.testing.assert_allclose(course.delta, -0.01 * np.array(wanted).T)


def test_without_weight_the_quadratic_regulator_leaves_the_disturbance():
    d = np.random.default_rng(0).normal(0, 0.05, (3, 50))
    regulator = control.quadratic_regulator(FREE)
    np.testing.assert_allclose(regulator.gains * FREE.vimin_0, [6.47, -2.40, 1.15, -0.49, -0.013], rtol=1e-9)
    np.testing.assert_allclose(control.run(regulator, episodes(d), FREE, Window).iminer, d, atol=1e-12)


def test_quadratic_gains_are_optimal():
    """Any other gains cost more on a long course of noise."""
    weight, d = 1.0, np.random.default_rng(1).normal(0, 0.033, (160, 500))

    def cost(gains):
        course = control.run(control.StateFeedback(gains), episodes(d), FREE, Window)
        return float((course.iminer[:, 50:] ** 2 + weight * np.diff(course.delta[:, 49:]) ** 2).mean())

    gains = control.quadratic_regulator(FREE, weight).gains
    assert np.abs(gains - control.quadratic_regulator(FREE).gains).max() > 0.01
    least = cost(gains)
    for n in range(5):
        for change in (-0.02, 0.02):
            assert cost(gains + change * np.eye(5)[n]) > least


def test_simulated_disturbances_have_the_moments_of_those_of_the_environment():
    p, steps = Params(), 60
    d = control.simulate(p, 20_000, steps).disturbance
    for lag in (0, 5, 10):
        # Both samples of a pair in the burst, one of them, or none.
        pairs = np.array([78 - lag, 2 * lag, 901 - 78 - lag]) / 901
        strength = pairs @ [(p.amplitude + p.burst) ** 2, (p.amplitude + p.burst) * p.amplitude, p.amplitude**2]
        expected = p.noise**2 * (lag == 0) + strength * np.cos(2 * np.pi * lag / 10) / 2
        assert (d[:, lag:] * d[:, : steps - lag]).mean() == pytest.approx(expected, abs=6e-5), lag


def test_search_finds_a_minimum():
    found = control.search(lambda x: abs(x[0] - 0.3) + (x[1] + 0.07) ** 2, (0.0, 0.0), 0.1)
    assert found == pytest.approx((0.3, -0.07), abs=2e-4)


@pytest.mark.by_default(0)
def test_best_gains_are_better_than_the_published_ones():
    made = engine(60, action="continuous")
    given = held(made, 40).episodes
    limit = control.limit_of(made.spec.groups[0].action, made.tables.changes)
    returns = [
        control.run(regulator, given, made.params, made.tables, limit).returns.mean()
        for regulator in (Pid(), control.best_pid(given, made.params, made.tables, limit))
    ]
    assert returns[1] > 0.5 * returns[0]


def test_limits_are_those_of_the_action_spaces():
    changes = np.array([-0.2, 0.0, 0.1, 0.4])
    wanted = np.random.default_rng(0).uniform(-0.5, 0.7, 200)
    nearest = changes[np.abs(wanted[:, None] - changes).argmin(1)]
    np.testing.assert_array_equal(control.limit_of(Discrete(4), changes)(wanted), nearest)
    np.testing.assert_array_equal(control.limit_of(Box(1, -0.1, 0.3), changes)(wanted), wanted.clip(-0.1, 0.3))


def test_least_deviations():
    """A constant is the median; with outliers the line of the others is found, which least squares miss."""
    values = np.array([1.0, 2.0, 2.5, 7.0, 90.0])
    assert RESULTS.least_deviations(np.ones((5, 1)), values) == pytest.approx([2.5], abs=1e-3)
    draws = np.random.default_rng(0)
    features = np.c_[draws.normal(0, 3, 400), np.ones(400)]
    target = features @ [0.7, -0.2]
    target[::9] += 50
    np.testing.assert_allclose(RESULTS.least_deviations(features, target), [0.7, -0.2], atol=1e-2)


def test_a_known_disturbance_can_be_cancelled():
    d = np.random.default_rng(0).normal(0, 0.05, (3, 50))
    course = control.run(RESULTS.Predictive(FREE, d), episodes(d), FREE, Window)
    np.testing.assert_allclose(course.iminer, 0.0, atol=1e-12)
