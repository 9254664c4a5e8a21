"""The CUDA engine on a GPU: the same trajectories as on CPU, training, no wait for the device, and the same training by CUDA graphs."""

import pytest
import torch

from tests.agents import build
from tests.simulation.rollouts import CASES, CPU, FUSED_CASES, assert_same, compared, make, roll_out, roll_out_networks
from warprun.envs import cartpole
from warprun.kernels import repeat
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.learning.settings.off_policy import ReplayConfig
from warprun.simulation.device import Device

pytestmark = pytest.mark.gpu

CUDA = Device("cuda", "a test")
TOLERANCE = 5e-6
"""Relative to 1 + |value|, after up to 16 steps: both fuse multiplications and additions, but not the same ones."""


def setting(case, agent, n_envs, horizon, fused, captured=False):
    """Return an engine and an agent on the GPU; the name of an agent with memory ends with it."""
    environment = CASES[case].environment
    agent, _, memory = agent.partition(" ")
    network = {"type": memory, "units": [16]} if memory else {}
    if agent in ("a2c", "ppo"):
        more = {"network": NetworkConfig(hidden=[32], **network), "entropy_coef_end": 0.0}
    else:
        replay = ReplayConfig(20 * n_envs, prioritized=True, **({"sequence": 3, "burn_in": 1} if memory else {}))
        more = {"network": LayersConfig(hidden=[32], **network), "replay": replay, "n_step": 2}
        more |= {"learning_starts": 5 * n_envs, "utd_ratio": 12 / (n_envs * horizon), "target_update_interval": 5}
    more |= {"horizon": horizon, "learning_rate_end": 1e-4}
    made = build(agent, environment, device=CUDA.torch, n_envs=n_envs, seed=0, fused=fused, captured=captured, **more)
    options = {"n_envs": n_envs, "horizon": horizon, "vary": dict(CASES[case].vary), "exploration": made.exploration}
    networks = made.networks() if fused else None
    engine = make(environment, case, device=CUDA, networks=networks, repeats=repeat.Captured if captured else None, **options)
    engine.trajectory.remember(made.carry)
    return engine, made


LEARN = [(agent, case) for agent in ("a2c", "ppo") for case in ("cartpole", "pendulum", "market")]
LEARN += [("dqn", "cartpole"), ("ddpg", "pendulum"), ("td3", "pendulum"), ("sac", "pendulum")]
LEARN = [(*given, fused) for given in LEARN for fused in (False, True)]
LEARN += [(agent, case, False) for agent, case in (("a2c gru", "market"), ("ppo lstm", "cartpole"), ("dqn gru", "cartpole"))]
LEARN += [(f"{agent} lstm", "pendulum", False) for agent in ("ddpg", "td3", "sac")]
"""Agent, environment, and whether rollouts are fused."""


@pytest.mark.parametrize(("agent", "case", "fused"), LEARN)
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


@pytest.mark.parametrize(("agent", "case", "fused"), LEARN)
def test_captured_training_is_the_plain_one(agent, case, fused):
    """After 20 iterations: a number that a graph had kept from its capture would have shown by then."""
    states = []
    for captured in (False, True):
        engine, learner = setting(case, agent, 64, 8, fused, captured)
        for n in range(20):
            learner.update(engine.collect(learner.act), n / 20)
        states.append({name: tensor.cpu().clone() for name, tensor in learner.state().items()})
    assert engine._roll_out._recorded
    for name, expected in states[0].items():
        torch.testing.assert_close(states[1][name], expected, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_cartpole_is_learnt():
    """From about 20 steps to ten times as many."""
    learner = build("ppo", cartpole.environment(), device=CUDA.torch, n_envs=2048, seed=0, fused=True, captured=True, horizon=16)
    options = {"n_envs": 2048, "horizon": 16, "networks": learner.networks(), "captured": True}
    engine = make(cartpole.environment(), "cartpole", device=CUDA, **options)
    for n in range(120):
        learner.update(engine.collect(learner.act), n / 120)
        if n == 4:
            assert engine.episodes().mean_return["agent"] < 60
        if n == 104:
            engine.episodes()
    assert engine.episodes().mean_return["agent"] > 200


@pytest.mark.parametrize("n_envs", [3, 300])
@pytest.mark.parametrize("case", CASES)
def test_trajectories_equal_those_of_the_cpu(case, n_envs):
    assert_same(roll_out(case, CPU, n_envs=n_envs), roll_out(case, CUDA, n_envs=n_envs), TOLERANCE)


@pytest.mark.parametrize("fused", [False, True], ids=["stepwise", "fused"])
@pytest.mark.parametrize("n_envs", [3, 300])
@pytest.mark.parametrize("name", FUSED_CASES)
def test_trajectories_of_networks_equal_those_of_the_cpu(name, n_envs, fused):
    case = FUSED_CASES[name][0]
    expected, found = roll_out_networks(name, CPU, fused=False, n_envs=n_envs), roll_out_networks(name, CUDA, fused, n_envs=n_envs)
    # An agent that acts by torch gives the same policy outputs up to their rounding.
    assert_same(compared(case, expected), compared(case, found), 2e-5)
