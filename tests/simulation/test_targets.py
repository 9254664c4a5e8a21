"""The same trajectories by every way to run an environment: compiled for CPU, as CUDA kernels in the simulator, as plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from tests.selection import few, selected
from tests.simulation.rollouts import CASES, CPU, load, roll_out, start

TESTED = few(CASES, "cartpole", "conditional", "crane", "mountain_car_continuous", "loops integrate", "leaving")


@pytest.fixture(scope="module")
def others(request, tmp_path_factory):
    """Return the rollouts of the other targets, by target and case that is tested; both processes run at once."""
    folder = tmp_path_factory.mktemp("rollouts")
    variables = {"plain": {"NUMBA_DISABLE_JIT": "1"}, "cudasim": {"NUMBA_ENABLE_CUDASIM": "1"}}
    cases = selected(request, "test_trajectories_are_the_same", "case")
    processes = {
        name: start("cpu" if name == "plain" else name, folder / f"{name}.npz", "stepwise", cases, **given)
        for name, given in variables.items()
    }
    return {name: load(process, folder / f"{name}.npz") for name, process in processes.items()}


@pytest.mark.by_default(2)
@pytest.mark.parametrize("case", TESTED)
@pytest.mark.parametrize("target", ["plain", "cudasim"])
def test_trajectories_are_the_same(others, target, case):
    expected, found = roll_out(case, CPU), others[target][case]
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        if array.dtype.kind == "f":
            np.testing.assert_allclose(found[name], array, rtol=CASES[case].tolerance, atol=CASES[case].tolerance, err_msg=name)
        else:  # discrete actions, masks, ends, integer states
            np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("case", TESTED)
def test_rollouts_hold_something(case):
    """Episodes end, actions and rewards differ: equal zeros would prove nothing."""
    arrays = roll_out(case, CPU)
    assert arrays["episodes"][0] > 0
    for name, array in arrays.items():
        if name.endswith(".log_prob") and CASES[case].exploration:
            continue  # actions are not drawn from distributions
        if name.endswith((".action", ".obs", ".log_prob", ".mask")):
            assert len(np.unique(array)) > 1, name
