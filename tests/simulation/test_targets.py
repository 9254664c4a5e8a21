"""The same by every way to run an environment: compiled for CPU, as CUDA kernels in the simulator, as plain Python."""

import numpy as np
import pytest
import torch

from tests.environments import bounds
from tests.selection import few, selected
from tests.simulation.rollouts import CASES, CPU, assert_same, load, make, roll_out, start
from warprun.config.checks import check_requirements
from warprun.environment import Box, ContractError, single_agent
from warprun.errors import UserError

TARGETS = {"plain": {"NUMBA_DISABLE_JIT": "1"}, "cudasim": {"NUMBA_ENABLE_CUDASIM": "1"}}
TESTED = few(
    CASES, "cartpole", "mountain_car_continuous", "conditional", "crane", "leaving", "cells 1", "cells 2", "bounds", "loops integrate"
)


@pytest.fixture(scope="module")
def others(request, tmp_path_factory):
    """Return the rollouts of the other targets, by target and case that is tested; both processes run at once."""
    folder = tmp_path_factory.mktemp("rollouts")
    cases = selected(request, "test_trajectories_are_the_same", "case")
    processes = {
        name: start("cpu" if name == "plain" else name, folder / f"{name}.npz", [f"stepwise: {case}" for case in cases], **given)
        for name, given in TARGETS.items()
    }
    return {name: load(process, folder / f"{name}.npz") for name, process in processes.items()}


@pytest.mark.by_default(3)
@pytest.mark.parametrize("case", TESTED)
def test_trajectories_are_the_same(others, case):
    expected = roll_out(case, CPU)
    for found in (expected, *(others[target][f"stepwise: {case}"] for target in TARGETS)):
        check_values(case, found)
        assert_same(expected, found, CASES[case].tolerance)


def check_values(case, found):
    """Check what is known of a case: episodes end, actions and rewards differ, for equal zeros would prove nothing."""
    assert found["episodes"][0] > 0
    for name, array in found.items():
        if name.endswith((".action", ".obs", ".log_prob", ".mask")) and not (name.endswith(".log_prob") and CASES[case].exploration):
            assert len(np.unique(array)) > 1, name
    if case.startswith("cells"):  # what a phase writes it does not see
        assert all((found["cells.obs"][row] == [row, row, row + 1, row + 1]).all() for row in range(4))
    if case == "bounds":
        taken = found["agent.obs"][: bounds.SIZE - 1, :, 0, 0].T
        assert ((np.float32(bounds.LOW[:-1]) <= taken) & (taken <= np.float32(bounds.HIGH[:-1]))).all()


def test_actions_are_mapped_to_their_bounds():
    actions = np.random.default_rng(1).standard_normal((32, bounds.SIZE)).astype(np.float32) * 1.5
    actions[0], actions[1], actions[2] = 1.0, -1.0, np.nextafter(np.float32(1.0), np.float32(0.0))
    engine = make(bounds.environment, "bounds", n_envs=len(actions), horizon=bounds.SIZE)
    engine.trajectory.groups["agent"].action[:] = torch.from_numpy(actions)[:, None]
    found = engine.retrace().groups["agent"].obs[1:, :, 0, 0].numpy().T
    low, high = np.float32(bounds.LOW), np.float32(bounds.HIGH)
    assert np.all((found >= low) & (found <= high))
    bounded = np.isfinite(low) & np.isfinite(high)
    share = ((np.clip(actions.astype(np.float64), -1.0, 1.0) + 1.0) / 2.0)[:, bounded]
    expected = np.where(bounded, 0.0, actions)
    expected[:, bounded] = low[bounded] * (1.0 - share) + high[bounded] * share
    expected = np.clip(expected, low, high)
    size = np.where(bounded, np.maximum(np.abs(low), np.abs(high)), 1.0)
    assert np.all(np.abs(found - expected) <= 3e-7 * size)
    assert np.array_equal(found[0, bounded], high[bounded])
    assert np.array_equal(found[1, bounded], low[bounded])


@pytest.mark.parametrize("agent", ["ddpg", "td3", "sac"])
@pytest.mark.parametrize("box", [Box(1), Box(2, 0.0), Box(2, (-1.0, -np.inf), 1.0)], ids=str)
def test_agents_that_act_within_bounds_refuse_a_box_without(agent, box):
    functions = {"reset": bounds.reset, "step": bounds.step, "observe": bounds.observe}
    made = single_agent(state=bounds.State, observation=Box(1), action=box, **functions)
    with pytest.raises(UserError, match=r"needs a Box with a finite low and high, .* agents that can: a2c, ppo") as raised:
        check_requirements(agent, made.spec)
    assert "\n" not in str(raised.value)
    check_requirements("ppo", made.spec)


@pytest.mark.parametrize("bounds", [(1, 1.0, 0.0), (1, np.nan), (1, 0.0, 1e39), (2, (0.0,), 1.0), (1, np.inf)], ids=str)
def test_bounds_that_bound_nothing_are_refused(bounds):
    with pytest.raises(ContractError, match="a Box has"):
        Box(*bounds)
