"""`step` sees no action out of bounds, whatever the policy gives and whatever the bounds are."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.simulation.rollouts import ROOT, make
from warprun.config.checks import check_requirements
from warprun.environment import Box, ContractError, float32, single_agent
from warprun.errors import UserError
from warprun.simulation.device import choose

SIZE, ENVS = 24, 32


class State(NamedTuple):
    x: float32


def reset():
    return State(float32(0.0))


def step(s, action, t):
    return State(action[t % SIZE]), 0.0, False


def observe(s):
    return (s.x,)


def random_bounds() -> tuple[tuple[float, ...], tuple[float, ...]]:
    random = np.random.default_rng(0)
    low = (random.standard_normal(SIZE) * 10.0 ** random.integers(-6, 6, SIZE)).astype(np.float32)
    high = low + np.abs(random.standard_normal(SIZE) * 10.0 ** random.integers(-6, 6, SIZE)).astype(np.float32)
    low[0], high[0] = -3e38, 3e38  # their difference is infinite
    low[1::6], high[2::6] = -np.inf, np.inf
    low[3::6], high[3::6] = -np.inf, np.inf
    return tuple(map(float, low)), tuple(map(float, high))


LOW, HIGH = random_bounds()
environment = single_agent(state=State, observation=Box(1), action=Box(SIZE, LOW, HIGH), reset=reset, step=step, observe=observe)


def policy_actions() -> np.ndarray:
    actions = np.random.default_rng(1).standard_normal((ENVS, SIZE)).astype(np.float32) * 1.5
    actions[0], actions[1], actions[2] = 1.0, -1.0, np.nextafter(np.float32(1.0), np.float32(0.0))
    return actions


def seen(device: str) -> np.ndarray:
    """Return what `step` sees of every component, [N, C]."""
    engine = make(environment, "bounds", device=choose(device), n_envs=ENVS, horizon=1)
    found = []
    for _ in range(SIZE):
        engine.trajectory.groups["agent"].action[0, :, 0] = torch.from_numpy(policy_actions())
        engine.step(0)
        found.append(engine.state_of("agent")["x"][:, 0].numpy().copy())
    return np.stack(found, axis=1)


@pytest.mark.by_default(1)
@pytest.mark.parametrize("target", ["cpu", "cudasim", "plain"])
def test_step_sees_no_action_out_of_bounds(target, tmp_path):
    if target == "cpu":
        found = seen("cpu")
    else:
        variable = "NUMBA_ENABLE_CUDASIM" if target == "cudasim" else "NUMBA_DISABLE_JIT"
        device = "cpu" if target == "plain" else target
        code = f"import numpy as np; from tests.simulation.test_bounds import seen; np.save('{tmp_path}/x.npy', seen('{device}'))"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env=os.environ | {"PYTHONPATH": str(ROOT), variable: "1"})
        found = np.load(tmp_path / "x.npy")
    low, high, given = np.float32(LOW), np.float32(HIGH), policy_actions()
    assert np.all((found >= low) & (found <= high))
    bounded = np.isfinite(low) & np.isfinite(high)
    share = (np.clip(given.astype(np.float64), -1.0, 1.0) + 1.0) / 2.0
    expected = np.where(bounded, 0.0, given)
    share = share[:, bounded]
    expected[:, bounded] = low[bounded] * (1.0 - share) + high[bounded] * share
    expected = np.clip(expected, low, high)
    size = np.where(bounded, np.maximum(np.abs(low), np.abs(high)), 1.0)
    assert np.all(np.abs(found - expected) <= 3e-7 * size)
    assert np.array_equal(found[0, bounded], high[bounded])
    assert np.array_equal(found[1, bounded], low[bounded])


@pytest.mark.parametrize("agent", ["ddpg", "td3", "sac"])
@pytest.mark.parametrize("box", [Box(1), Box(2, 0.0), Box(2, (-1.0, -np.inf), 1.0)], ids=str)
def test_agents_that_act_within_bounds_refuse_a_box_without(agent, box):
    made = single_agent(state=State, observation=Box(1), action=box, reset=reset, step=step, observe=observe)
    with pytest.raises(UserError, match=r"needs a Box with a finite low and high, .* agents that can: a2c, ppo") as raised:
        check_requirements(agent, made.spec)
    assert "\n" not in str(raised.value)
    check_requirements("ppo", made.spec)


@pytest.mark.parametrize("bounds", [(1, 1.0, 0.0), (1, np.nan), (1, 0.0, 1e39), (2, (0.0,), 1.0), (1, np.inf)], ids=str)
def test_bounds_that_bound_nothing_are_refused(bounds):
    with pytest.raises(ContractError, match="a Box has"):
        Box(*bounds)
