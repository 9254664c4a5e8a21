"""The CUDA engine on a GPU: the same trajectories as on CPU, training, and no wait for the device while it rolls out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.rollouts import CASES, CPU, FUSED_CASES, make, roll_out, roll_out_networks
from warprun.agents import agent_class
from warprun.agents.config import NetworkConfig
from warprun.engine.device import Device
from warprun.envs import cartpole

pytestmark = pytest.mark.gpu

CUDA = Device("cuda", "a test")
TOLERANCE = 5e-6
"""Relative to 1 + |value|, after up to 16 steps: both fuse multiplications and additions, but not the same ones."""


@pytest.mark.parametrize("n_envs", [3, 300])
@pytest.mark.parametrize("case", CASES)
def test_trajectories_equal_those_of_the_cpu(case, n_envs):
    assert_same(roll_out(case, CPU, n_envs=n_envs), roll_out(case, CUDA, n_envs=n_envs), TOLERANCE)


@pytest.mark.parametrize("fused", [False, True], ids=["stepwise", "fused"])
@pytest.mark.parametrize("n_envs", [3, 300])
@pytest.mark.parametrize("name", FUSED_CASES)
def test_trajectories_of_networks_equal_those_of_the_cpu(name, n_envs, fused):
    expected, found = roll_out_networks(name, CPU, fused=False, n_envs=n_envs), roll_out_networks(name, CUDA, fused, n_envs=n_envs)
    if FUSED_CASES[name][0].exploration:  # actions are not drawn from distributions
        expected = {key: array for key, array in expected.items() if not key.endswith("log_prob")}
    # An agent that acts by torch gives the same policy outputs up to their rounding.
    assert_same(expected, {key: found[key] for key in expected}, 2e-5)


def assert_same(expected, found, tolerance):
    """Compare integers exactly, floats relative to 1 + |value|."""
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        if array.dtype.kind == "f":
            np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def setting(case, agent, n_envs, horizon, fused):
    """Return an engine and an agent on the GPU."""
    engine = make(CASES[case].environment, case, device=CUDA, n_envs=n_envs, horizon=horizon, vary=dict(CASES[case].vary))
    cls = agent_class(agent)
    config = cls.Config(network=NetworkConfig(hidden=[32]), horizon=horizon)
    made = cls(config, engine.environment.groups, CUDA.torch, 1, 0)
    if fused:
        assert engine.fuse(made.fuse())
    return engine, made


@pytest.mark.parametrize("fused", [False, True], ids=["stepwise", "fused"])
@pytest.mark.parametrize("agent", ["a2c", "ppo"])
@pytest.mark.parametrize("case", ["cartpole", "pendulum", "market"])
def test_rollout_and_update_never_wait_for_the_device(case, agent, fused):
    engine, learner = setting(case, agent, 256, 8, fused)
    learner.update(engine.collect(learner.act), 0.0)  # compiles, and makes what is made once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses = learner.update(engine.collect(learner.act), 0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.isfinite(value) for value in losses.values())


def test_cartpole_is_learnt():
    """From about 20 steps to ten times as many."""
    engine = make(cartpole.environment, "cartpole", device=CUDA, n_envs=2048, horizon=16)
    cls = agent_class("ppo")
    learner = cls(cls.Config(horizon=16), engine.environment.groups, CUDA.torch, 1, 0)
    assert engine.fuse(learner.fuse())
    for n in range(120):
        learner.update(engine.collect(learner.act), n / 120)
        if n == 4:
            assert engine.episodes().mean_return["agent"] < 60
        if n == 104:
            engine.episodes()
    assert engine.episodes().mean_return["agent"] > 200
