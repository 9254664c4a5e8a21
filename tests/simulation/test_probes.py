"""A2C and PPO learn what is known exactly: the value, the action, the value through a truncation."""

import pytest
import torch

from tests.agents import build
from tests.environments.probes import PROBES
from tests.simulation.rollouts import make
from warprun.learning.network_settings import NetworkConfig

GAMMA = 0.9
HORIZON, N_ENVS = 8, 64
AGENTS = {
    "a2c": {"learning_rate": 1e-2},
    "ppo": {"learning_rate": 5e-3, "epochs": 4, "minibatches": 2},
}
UPDATES = {"a2c": 300, "ppo": 60}
# The numbers are those of the rewards themselves, so nothing is normalised.
SETTINGS = {"entropy_coef": 0.0, "learning_rate_end": 0.0, "normalize_reward": False, "normalize_obs": False}


@pytest.fixture(params=AGENTS)
def learn(request):
    """Return a function from a probe to a function from an observation to (value, policy outputs) after training."""

    def trained(probe, gamma=GAMMA, fused=False):
        environment, name, updates = PROBES[probe], f"probe_{''.join(filter(str.isalnum, probe))}", UPDATES[request.param]
        settings = {"gamma": gamma, "horizon": HORIZON, "network": NetworkConfig(hidden=[16]), **SETTINGS, **AGENTS[request.param]}
        agent = build(request.param, environment, n_envs=N_ENVS, seed=1, fused=fused, **settings)
        networks = agent.networks() if fused else None
        engine = make(environment, name, n_envs=N_ENVS, horizon=HORIZON, seed=1, networks=networks)
        for n in range(updates):
            agent.update(engine.collect(agent.act), n / updates)
        policy = agent.learners[0].policy

        def ask(obs):
            with torch.no_grad():
                output, value = policy(torch.tensor([[float(obs)]]))
            return value.item(), output[0]

        return ask

    return trained


@pytest.mark.slow
def test_1_a_value(learn):
    assert learn("1 a value")(0)[0] == pytest.approx(1.0, abs=0.02)


@pytest.mark.long
def test_2_a_value_that_depends_on_the_observation(learn):
    ask = learn("2 a value that depends")
    assert ask(1)[0] == pytest.approx(1.0, abs=0.02)
    assert ask(-1)[0] == pytest.approx(-1.0, abs=0.02)


@pytest.mark.slow
def test_3_a_value_to_come(learn):
    ask = learn("3 a value to come")
    assert ask(1)[0] == pytest.approx(1.0, abs=0.02)
    assert ask(0)[0] == pytest.approx(GAMMA, abs=0.02)


@pytest.mark.slow
def test_4_an_action(learn):
    value, logits = learn("4 an action")(0)
    assert logits.softmax(0)[1] > 0.98
    assert value == pytest.approx(1.0, abs=0.05)


@pytest.mark.by_default(1)
def test_5_an_action_that_depends_on_the_observation(learn):
    ask = learn("5 an action that depends")
    for obs, good in ((1, 1), (-1, 0)):
        value, logits = ask(obs)
        assert logits.softmax(0)[good] > 0.98
        assert value == pytest.approx(1.0, abs=0.05)


@pytest.mark.by_default(1)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "stepwise"])
def test_6_value_through_a_truncation(learn, fused):
    """1 / (1 - gamma); it would be (1 - gamma^8) / (1 - gamma) at most if truncation were taken for termination."""
    gamma = 0.8
    value = learn("6 no end but the time limit", gamma=gamma, fused=fused)(0)[0]
    assert value == pytest.approx(1 / (1 - gamma), abs=0.1)
    assert value > (1 - gamma**8) / (1 - gamma) + 0.5


@pytest.mark.slow
def test_4_a_real_action(learn):
    mean, _ = learn("4 a real action")(0)[1]
    assert mean == pytest.approx(0.5, abs=0.05)


@pytest.mark.long
def test_5_a_real_action_that_depends_on_the_observation(learn):
    ask = learn("5 a real action that depends")
    for obs in (1, -1):
        assert ask(obs)[1][0] == pytest.approx(obs / 2, abs=0.05)
