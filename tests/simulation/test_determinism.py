"""What may not change a result: threads, the number of environments beside, the length of a rollout; and what must: the seed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulation.rollouts import CASES, make, record

NAMES = ("cartpole", "pendulum", "market")


def roll(name, n_envs, threads=1, horizon=8, collects=2, seed=0):
    case = CASES[name]
    return record(make(case.environment, name, n_envs=n_envs, threads=threads, horizon=horizon, seed=seed, vary=dict(case.vary)), collects)


def assert_same(a, b):
    """Compare bit for bit."""
    for name in a.keys() - {"episodes", "returns"}:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def assert_close(a, b, n_envs):
    """Compare the first environments: integers exactly, floats up to the rounding of fused multiply-adds.

    The last tile, if it is not full, is computed without SIMD, and there LLVM may fuse other multiplications and additions.
    """
    for name in a.keys() - {"episodes", "returns"}:
        part = slice(n_envs) if ".state." in name else (slice(None), slice(n_envs))
        rtol = 1e-5 if a[name].dtype.kind == "f" else 0
        np.testing.assert_allclose(a[name][part], b[name][part], rtol=rtol, atol=rtol, err_msg=name)


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_envs", [pytest.param(1, marks=pytest.mark.slow), 37, pytest.param(100, marks=pytest.mark.slow)])
def test_threads_change_nothing(name, n_envs):
    one, two = roll(name, n_envs, threads=1), roll(name, n_envs, threads=2)
    assert_same(one, two)
    np.testing.assert_array_equal(one["returns"], two["returns"])


@pytest.mark.parametrize("name", NAMES)
def test_other_environments_change_nothing(name):
    many = roll(name, 100)
    for n_envs in (1, 37):
        assert_close(roll(name, n_envs), many, n_envs)


@pytest.mark.parametrize("name", NAMES)
def test_two_short_rollouts_equal_a_long_one(name):
    short, long = roll(name, 5, horizon=8, collects=2), roll(name, 5, horizon=16, collects=1)
    assert_same({key: value for key, value in short.items() if "first_obs" not in key}, long)


@pytest.mark.parametrize("name", NAMES)
def test_seeds_change_everything(name):
    """Either half of the seed; the policy is the same."""
    first, low, high = (roll(name, 5, seed=seed) for seed in (0, 1, 2**32))
    for a, b in ((first, low), (first, high), (low, high)):
        for key in (key for key in a if key.endswith(".obs")):
            assert (a[key] != b[key]).mean() > 0.3, key
