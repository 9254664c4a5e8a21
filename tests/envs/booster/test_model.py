"""Transitions, rewards, ends and disturbances of the booster surrogate, held to the equations and to published numbers."""

import numpy as np
import pytest
import torch

from tests.envs.booster.helpers import QUIET, STEPS, engine, environment, held, step_all
from tests.selection import few
from warprun.envs.booster import control, start
from warprun.envs.booster.model import HIGHEST, LEAST, LOWEST, MOST, Params, SimpleParams
from warprun.envs.booster.published import AUTOCORRELATION, SETTING, SIGNALS
from warprun.errors import UserError

PLANTS = few(start.PLANTS, "full")
ZERO = ("delta", "delta_1", "iminer", "iminer_1")


def at_rest(**options):
    """Return an engine of one undisturbed environment whose plant has been at 0."""
    made = engine(1, QUIET, action="continuous", **options)
    made.set_state("agent", **{name: torch.zeros(1) for name in ZERO})
    return made


def places(made):
    """Return the places in the super-cycle, [N]."""
    return made.state_of("agent")["place"].clone().numpy().reshape(-1)


def units(change):
    """Return changes of VIMIN in the units of a policy."""
    low, high = start.bounds()
    return np.float32(2 * (np.asarray(change) - low) / (high - low) - 1)


def test_worked_transitions_and_rewards():
    """delta = 0.01, 0, 0 from rest, computed by hand."""
    found = step_all(at_rest(), units([[0.01, -0.01, 0.0]]))
    expected = [-0.0722, -0.03133, -0.0376515]
    np.testing.assert_allclose(found.iminer[0], expected, atol=2e-6)
    np.testing.assert_allclose(found.rewards[0], expected, atol=2e-6)
    np.testing.assert_allclose(found.seen[0, -1, -5:-3], [(SETTING - 103.39773) / 0.02934, (-0.0376515 + 0.0003) / 0.26], atol=1e-4)


def test_actions_are_quantiles_of_published_changes():
    found = start.changes()
    assert len(found) == 30 and (np.diff(found) > 0).all()
    assert (found[0], found[29]) == (-0.0178, 0.0165)
    # Action 5 is at 6/31: 5 of the 29 steps from 1/31 to 30/31, that is 30/29 of the six intervals.
    assert found[5] == pytest.approx(-0.0108 + (30 / 29 - 1) * 0.0069)
    # A quarter is at 6.75 of the 29 steps, three quarters at 22.25.
    assert start.bounds() == pytest.approx((4 * (-0.0108 + 0.39655 * 0.0069), 4 * (0.0042 + 0.60345 * 0.0045)), abs=1e-6)


def reference(found, changes, tables, p):
    """Return delta, IMINER, rewards and lengths of episodes, in float64 and one number at a time."""
    given = found.episodes
    n, steps = changes.shape
    deltas, iminers, rewards, length = np.zeros((n, steps)), np.zeros((n, steps)), np.zeros((n, steps)), np.full(n, steps)
    for k in range(n):
        d1, d2, e1, e2 = (float(getattr(given, name)[k]) for name in ZERO)
        for t in range(steps):
            d = d1 + changes[k, t]
            outside, at_edge = not tables.low <= d <= tables.high, not tables.low < d < tables.high
            d = min(max(d, LOWEST), HIGHEST) if tables.compat else min(max(d, tables.low), tables.high)
            e = p.vimin_0 * d + p.vimin_1 * d1 + p.vimin_2 * d2 + p.iminer_1 * e1 + p.iminer_2 * e2 + p.offset + given.disturbance[k, t]
            e = min(max(e, LEAST), MOST)
            deltas[k, t], iminers[k, t], rewards[k, t] = d, e, -abs(e)
            d1, d2, e1, e2 = d, d1, e, e1
            if not tables.compat:
                rewards[k, t] -= 0.5 * at_edge
            elif outside or abs(e) >= 2:
                rewards[k, t] -= 5 * (STEPS - t - 1) * (abs(e) >= 2)
                length[k] = t + 1
                break
    return deltas, iminers, rewards, length


@pytest.mark.by_default(0)
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("mode", ["corrected", "compat"])
def test_episodes_of_random_actions_equal_a_reference(plant, mode):
    n = 40
    made = engine(n, plant=plant, mode=mode)
    actions = np.random.default_rng(3).integers(0, 30, (n, STEPS)).astype(np.int32)
    actions[: n // 2, 30:60] = 29  # to the edge
    found, moves = step_all(made, actions), start.changes()[actions]
    deltas, iminers, rewards, length = reference(found, moves, made.tables, made.params)
    known = np.arange(STEPS) < length[:, None]
    np.testing.assert_array_equal(found.length, length)
    np.testing.assert_allclose(found.delta[known], deltas[known], atol=2e-6)
    np.testing.assert_allclose(found.iminer[known], iminers[known], atol=4e-5)
    np.testing.assert_allclose(found.rewards, rewards, atol=4e-5)
    # A regulator that wants what the actions made of VIMIN plays the same episodes.
    course = control.run(lambda now: now.delta + moves[:, now.step], found.episodes, made.params, made.tables)
    np.testing.assert_array_equal(course.length, length)
    np.testing.assert_allclose(course.iminer[known], iminers[known], atol=4e-5)
    np.testing.assert_allclose(course.returns, rewards.sum(1), atol=1e-3)
    if mode == "corrected":
        assert (length == STEPS).all() and (rewards < -0.5).any()
    else:
        assert (length < STEPS).all() and np.isnan(course.iminer[~known]).all()


@pytest.mark.long
def test_compat_punishes_a_large_error():
    made = engine(1, QUIET, mode="compat", action="continuous")
    made.set_state("agent", delta=torch.zeros(1), delta_1=torch.zeros(1), iminer=torch.tensor([2.0]), iminer_1=torch.zeros(1))
    found = held(made, 3)
    assert found.length[0] == 1
    assert found.iminer[0, 0] == pytest.approx(2.287)  # 1.15 x 2 - 0.013
    assert found.rewards[0, 0] == pytest.approx(-2.287 - 5 * 99)


@pytest.mark.long
def test_starts():
    fixed, anywhere = (engine(500, mode=mode).trajectory.groups["agent"].obs[0, :, 0].numpy() for mode in ("compat", "corrected"))
    assert (fixed == fixed[0]).all()
    assert len(np.unique(anywhere[:, -4])) > 490
    found = places(engine(2000))
    assert found.min() >= 0 and found.max() < 901
    assert found.mean() == pytest.approx(450, abs=20)


def test_the_window_is_that_of_the_samples_before_the_fixed_start():
    course = [sample.delta for sample in start.under_recorded_regulator("full", 150, start.START)]
    tables = environment(mode="compat", history=150).tables()
    assert (tables.low, tables.high) == (np.float32(min(course)), np.float32(max(course)))
    np.testing.assert_allclose(tables.start[:, 0], (np.array(course) + SETTING - 103.39773) / 0.02934, atol=1e-3)
    assert tables.start_place == start.START


@pytest.mark.by_default(0)
@pytest.mark.parametrize("history", [1, 15])
def test_observations_are_the_last_samples(history):
    made = engine(8, history=history)
    found = step_all(made, np.random.default_rng(1).integers(0, 30, (8, 20)).astype(np.int32))
    assert found.seen.shape == (8, 21, 5 * history)
    np.testing.assert_array_equal(found.seen[:, 1:, :-5], found.seen[:, :-1, 5:])
    np.testing.assert_allclose(found.seen[:, 1:, -5], (found.delta + SETTING - 103.39773) / 0.02934, atol=1e-3)
    np.testing.assert_allclose(found.seen[:, 1:, -4], (found.iminer + 0.0003) / 0.26, atol=1e-5)


@pytest.mark.by_default(0)
def test_signals_have_the_published_statistics():
    seen = held(engine(2000, history=1, action="continuous")).seen.reshape(-1, 5)
    for n, name in enumerate(SIGNALS):
        if name in ("VIMIN", "IMINER"):
            continue  # an agent moves them
        low, middle, high = np.quantile(seen[:, n], (0.25, 0.5, 0.75))
        assert middle == pytest.approx(0.0, abs=0.08), name
        assert high - low == pytest.approx(1.0, abs=0.08), name
    scaled = held(engine(200, history=1, action="continuous", scaling="minmax")).seen.reshape(-1, 5)[:, 2:]
    assert scaled.min() >= -1e-6 and scaled.max() <= 1 + 1e-6
    assert (np.ptp(scaled, 0) > 0.9).all()


def covariance(values, lag):
    """Return the covariance of values [N, T] with those `lag` steps later."""
    centred = values - values.mean()
    return float((centred[:, lag:] * centred[:, : values.shape[1] - lag]).mean())


@pytest.mark.parametrize("plant", PLANTS)
def test_disturbances(plant):
    made = engine(3000, seed=1, plant=plant, action="continuous")
    first = places(made)
    found = held(made)
    p = (Params if plant == "full" else SimpleParams)()
    calm = (first >= 78) & (first + STEPS < 901)
    d = found.episodes.disturbance
    assert d[calm].mean() == pytest.approx(0.0, abs=1e-3)
    assert covariance(d[calm], 0) == pytest.approx(p.noise**2 + p.amplitude**2 / 2, rel=0.03)
    for lag, sign in ((5, -1), (10, 1), (20, 1)):
        assert covariance(d[calm], lag) == pytest.approx(sign * p.amplitude**2 / 2, abs=2e-5)
    burst = first < 48
    assert covariance(d[burst][:, :30], 10) == pytest.approx((p.amplitude + p.burst) ** 2 / 2, rel=0.05)


def regulated(plant):
    """Return the disturbances of episodes, and their courses under the recorded regulator without limits or window."""
    made = engine(3000, seed=1, plant=plant, action="continuous")
    first = places(made)
    tables = made.tables._replace(low=LOWEST, high=HIGHEST)
    return first, control.run(control.recorded, held(made).episodes, made.params, tables)


@pytest.mark.parametrize("plant", PLANTS)
def test_autocorrelation_under_the_recorded_regulator(plant):
    """Near the published one: the full plant follows it at short lags, and at lag 10 it stays 0.22 below."""
    error = {"full": 0.25, "simple": 0.09}[plant]
    first, course = regulated(plant)
    calm = (first >= 98) & (first + STEPS < 901)
    found = {lag: covariance(course.iminer[calm], lag) / covariance(course.iminer[calm], 0) for lag in AUTOCORRELATION}
    for lag, published in AUTOCORRELATION.items():
        assert found[lag] == pytest.approx(published, abs=error), lag
    if plant == "full":
        expected = {1: 0.86, 2: 0.54, 3: 0.17, 4: -0.13, 5: -0.29, 10: 0.17}  # of the closed loop, by its impulse response
        assert found == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("plant", PLANTS)
def test_bursts_are_as_large_as_published(plant):
    first, course = regulated(plant)
    within = course.iminer[first < 18][:, 20:60]  # settled, and before sample 78
    assert np.sqrt(2 * covariance(within, 10)) == pytest.approx(0.75, abs=0.05)


@pytest.mark.long
def test_the_line_follows_the_periodic_disturbance():
    seen, wave = [], []
    made = engine(200, history=1, action="continuous", seed=2)
    for _ in range(20):
        wave.append(np.sin(2 * made.state_of("agent")["ramp"].numpy().reshape(-1)))
        seen.append(made.trajectory.groups["agent"].obs[0, :, 0].numpy().copy())
        held(made, 1)
    line, wave = np.array(seen)[..., 2], np.array(wave)
    assert np.corrcoef(line.ravel(), wave.ravel())[0, 1] == pytest.approx(0.51, abs=0.08)  # 7.07 of sqrt(7.07^2 + 12^2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"history": 0}, "env.history=0"),
        ({"history": 151}, "env.history=151"),
        ({"history": 2.5}, "env.history=2.5"),
        ({"plant": "fuller"}, "env.plant=fuller"),
        ({"mode": "other"}, "env.mode=other"),
        ({"scaling": "none"}, "env.scaling=none"),
        ({"action": 3}, "env.action=3"),
    ],
    ids=str,
)
def test_refused_options(options, words):
    with pytest.raises(UserError, match=words):
        environment(**options)
