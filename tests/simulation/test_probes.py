"""A2C and PPO learn what is known exactly: the value, the action, the value through a truncation."""

import pytest
import torch

from tests.agents import build
from tests.environments.probes import PROBES
from tests.simulation.rollouts import make
from warprun.learning.settings.networks import NetworkConfig

GAMMA = 0.9
HORIZON, N_ENVS = 8, 64
AGENTS = {"a2c": {"learning_rate": 1e-2}, "ppo": {"learning_rate": 5e-3, "epochs": 4, "minibatches": 2}}
UPDATES = {"a2c": 300, "ppo": 60}
# The numbers are those of the rewards themselves, so nothing is normalised.
SETTINGS = {"entropy_coef": 0.0, "learning_rate_end": 0.0, "normalize_reward": False, "normalize_obs": False}


def learn(agent, probe, gamma=GAMMA, fused=False):
    """Return a function from an observation to (value, policy outputs) after training."""
    environment, name, updates = PROBES[probe], f"probe_{''.join(filter(str.isalnum, probe))}", UPDATES[agent]
    settings = {"gamma": gamma, "horizon": HORIZON, "network": NetworkConfig(hidden=[16]), **SETTINGS, **AGENTS[agent]}
    made = build(agent, environment, n_envs=N_ENVS, seed=1, fused=fused, **settings)
    networks = made.networks() if fused else None
    engine = make(environment, name, n_envs=N_ENVS, horizon=HORIZON, seed=1, networks=networks)
    for n in range(updates):
        made.update(engine.collect(made.act), n / updates)
    policy = made.learners[0].policy

    def ask(obs):
        with torch.no_grad():
            output, value = policy(torch.tensor([[float(obs)]]))
        return value.item(), output[0]

    return ask


def value(expected, within=0.02):
    return lambda found, outputs: found == pytest.approx(expected, abs=within)


def choice(best):
    return lambda found, outputs: outputs.softmax(0)[best] > 0.98 and found == pytest.approx(1.0, abs=0.05)


def mean(expected):
    return lambda found, outputs: outputs[0] == pytest.approx(expected, abs=0.05)


LEARNT = {
    "5 an action that depends": {1: choice(1), -1: choice(0)},
    "1 a value": {0: value(1.0)},
    "2 a value that depends": {1: value(1.0), -1: value(-1.0)},
    "3 a value to come": {1: value(1.0), 0: value(GAMMA)},
    "4 an action": {0: choice(1)},
    "4 a real action": {0: mean(0.5)},
    "5 a real action that depends": {1: mean(0.5), -1: mean(-0.5)},
}
"""Probe -> observation -> what must hold for it. The probe of the first one needs all that the others do but for real actions."""


@pytest.mark.by_default(1)
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("probe", LEARNT)
def test_what_is_known_is_learnt(agent, probe):
    ask = learn(agent, probe)
    for obs, holds in LEARNT[probe].items():
        assert holds(*ask(obs)), obs


@pytest.mark.by_default(1)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "stepwise"])
@pytest.mark.parametrize("agent", AGENTS)
def test_a_value_through_a_truncation(agent, fused):
    """1 / (1 - gamma); it would be (1 - gamma^8) / (1 - gamma) at most if truncation were taken for termination."""
    gamma = 0.8
    found = learn(agent, "6 no end but the time limit", gamma=gamma, fused=fused)(0)[0]
    assert found == pytest.approx(1 / (1 - gamma), abs=0.1)
    assert found > (1 - gamma**8) / (1 - gamma) + 0.5
