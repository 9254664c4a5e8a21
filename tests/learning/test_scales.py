"""Rewards and observations in any units and about any offset: with the defaults, what can be learned is learned."""

from typing import Any

import pytest
import torch

from tests.agents import build
from tests.environments.probes import BANDIT, MATCHING_PENNIES, SIGN_IN_UNITS, Units
from tests.selection import few
from tests.simulation.rollouts import make
from warprun.algorithms import config_class
from warprun.environment import Environment

UPDATES = {"ppo": 20, "a2c": 100}
REWARDS = [(20.0, 1.0), (-20.0, 1.0), (0.0, 1e-9), (0.0, 1e6), (1e4, 1.0)]
"""Mean and spread."""


def train(name: str, env: Environment, probe: str, *, params: Any = None, fused: bool, updates: int, **settings: Any) -> Any:
    """Return an agent with default settings, but `settings`, after `updates` rollouts of 64 environments, and its last rollout."""
    options = {"params": params} if params else {}
    agent = build(name, env, n_envs=64, seed=1, fused=fused, **settings)
    networks = agent.networks() if fused else None
    engine = make(env, probe, n_envs=64, horizon=config_class(name)(**settings).horizon, seed=1, networks=networks, **options)
    for n in range(updates):
        taken = engine.collect(agent.act)
        agent.update(taken, n / updates)
    return agent, taken


def probabilities(agent: Any, obs: float, group: int = 0) -> torch.Tensor:
    with torch.no_grad():
        return agent.learners[group].policy(torch.tensor([[obs]]))[0][0].softmax(0)


@pytest.mark.by_default(2)
@pytest.mark.parametrize("fused", [False, True], ids=["stepwise", "fused"])
@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("units", few(REWARDS, "(20.0, 1.0)", "(0.0, 1e-09)"), ids=str)
def test_the_best_arm_wins_whatever_the_units_of_rewards(name: str, units: tuple[float, float], fused: bool) -> None:
    agent, _ = train(name, BANDIT, "bandit", params=Units(*units), fused=fused, updates=UPDATES[name])
    assert probabilities(agent, 0.0)[2] > 0.95


@pytest.mark.by_default(2)
@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("reward", [0.1, 5.0, -1e4])
def test_constant_rewards_change_no_policy(name: str, reward: float) -> None:
    """There is no variance to divide by, and rounding is not taken for one."""
    agent, _ = train(name, BANDIT, "bandit", params=Units(reward, 0.0), fused=True, updates=UPDATES[name])
    assert probabilities(agent, 0.0).tolist() == pytest.approx([1 / 3] * 3, abs=0.01)


@pytest.mark.by_default(2)
@pytest.mark.parametrize("fused", [False, True], ids=["stepwise", "fused"])
@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("units", few([(0.0, 1e-9), (0.0, 1e6), (1e6, 0.25)], "(0.0, 1e-09)"), ids=str)
def test_observations_are_told_apart_whatever_their_units(name: str, units: tuple[float, float], fused: bool) -> None:
    offset, scale = units
    agent, taken = train(name, SIGN_IN_UNITS, "sign_in_units", params=Units(*units), fused=fused, updates=UPDATES[name])
    assert probabilities(agent, offset + scale)[1] > 0.95
    assert probabilities(agent, offset - scale)[0] > 0.95
    assert agent.diagnostics(taken)["obs/clipped_share"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("entropy_coef", [0.0, 0.3])
def test_entropy_keeps_a_mixed_equilibrium(entropy_coef: float) -> None:
    """Matching pennies. Without the bonus, self-play circles the equilibrium, ever farther away; with it, it stays near."""
    agent, _ = train("ppo", MATCHING_PENNIES, "matching_pennies", fused=True, updates=60, entropy_coef=entropy_coef)
    farthest = max(abs(float(probabilities(agent, 0.0, group)[0]) - 0.5) for group in (0, 1))
    assert farthest < 0.25 if entropy_coef else farthest > 0.4
