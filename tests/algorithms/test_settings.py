"""Settings: checks, overrides per group, and how light they are."""

import math
from typing import Any

import pytest
from omegaconf import OmegaConf

from warprun.algorithms import AGENTS, agent_class, agent_names, config_class
from warprun.algorithms.settings import A2CConfig, PPOConfig
from warprun.errors import UserError
from warprun.learning.networks import ACTIVATIONS
from warprun.learning.operations import TARGETS
from warprun.learning.optimizers import OPTIMIZERS
from warprun.learning.settings import agent, networks, on_policy
from warprun.learning.settings.agent import OptimizerConfig, check_groups, check_settings, group_config
from warprun.learning.settings.networks import NetworkConfig

WRONG = [
    (PPOConfig(gamma=1.5), "agent.gamma=1.5"),
    (PPOConfig(gamma=math.nan), "agent.gamma=nan"),
    (PPOConfig(gae_lambda=-0.1), "agent.gae_lambda=-0.1"),
    (PPOConfig(learning_rate=0.0), "agent.learning_rate=0.0"),
    (PPOConfig(learning_rate=math.nan), "agent.learning_rate=nan"),
    (PPOConfig(learning_rate_end=-1.0), "agent.learning_rate_end=-1.0"),
    (PPOConfig(entropy_coef=math.inf), "agent.entropy_coef=inf"),
    (PPOConfig(horizon=0), "agent.horizon=0"),
    (PPOConfig(minibatches=0), "agent.minibatches=0"),
    (PPOConfig(epochs=0), "agent.epochs=0"),
    (PPOConfig(clip=0.0), "agent.clip=0.0"),
    (PPOConfig(target_kl=0.0), "agent.target_kl=0.0"),
    (PPOConfig(max_grad_norm=-1.0), "agent.max_grad_norm=-1.0"),
    (A2CConfig(advantage="gea"), "agent.advantage=gea: unknown; did you mean 'gae'?"),
    (A2CConfig(optimizer=OptimizerConfig("adma")), "agent.optimizer.name=adma: unknown; did you mean 'adam'?"),
    (A2CConfig(network=NetworkConfig(hidden=[])), "agent.network.hidden=[]"),
    (A2CConfig(network=NetworkConfig(hidden=[64, 0])), "agent.network.hidden=[64, 0]"),
    (A2CConfig(network=NetworkConfig(hidden=[[64], 64])), "agent.network.hidden=[[64], 64]"),  # type: ignore[list-item]
    (A2CConfig(network=NetworkConfig(activation="than")), "agent.network.activation=than"),
    (A2CConfig(groups={"planner": {"gamma": 2.0}}), "agent.groups.planner.gamma=2.0"),
    (A2CConfig(groups={"planner": {"gama": 0.9}}), "agent.groups.planner.gama: there is no such setting; did you mean 'gamma'?"),
    (A2CConfig(groups={"planner": {"network": {"hiden": [2]}}}), "agent.groups.planner.network.hiden: there is no such setting"),
    (A2CConfig(groups={"planner": {"clip": 0.1}}), "agent.groups.planner.clip: there is no such setting"),
    (A2CConfig(groups={"planner": {"horizon": 3}}), "agent.groups.planner.horizon: all groups share agent.horizon"),
    (A2CConfig(groups={"planner": {"gamma": "high"}}), "agent.groups.planner.gamma"),
    (A2CConfig(groups={"planner": 3}), "agent.groups.planner=3: give settings"),
    (A2CConfig(groups={"planner": {"network": 3}}), "agent.groups.planner.network=3: give settings"),
]


@pytest.mark.parametrize(("config", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_cannot_work_is_told_in_one_line(config: Any, says: str) -> None:
    with pytest.raises(UserError) as failure:
        check_settings(config)
    assert str(failure.value).startswith(says)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("name", AGENTS)
def test_defaults_pass_and_are_structured(name: str) -> None:
    config = config_class(name)()
    check_settings(config)
    assert config.name == name
    assert OmegaConf.to_object(OmegaConf.structured(config)) == config


def test_a_group_has_its_own_settings() -> None:
    config = PPOConfig(groups={"planner": {"entropy_coef": 0.5, "clip_value": None, "network": {"hidden": [32]}}}, clip_value=0.3)
    planner = group_config(config, "planner")
    assert (planner.entropy_coef, planner.clip_value, planner.network.hidden) == (0.5, None, [32])
    assert (planner.gamma, planner.network.activation) == (config.gamma, "tanh")
    assert group_config(config, "governor") == config


def test_an_unknown_group_is_told_with_the_nearest() -> None:
    config = A2CConfig(groups={"planer": {"gamma": 0.9}})
    with pytest.raises(UserError, match=r"agent\.groups\.planer: .* did you mean 'planner'\?"):
        check_groups(config, ["governor", "planner"])


def test_agents_by_name() -> None:
    for name in AGENTS:
        assert agent_class(name).Config is config_class(name)
    assert set(AGENTS) <= set(agent_names())
    with pytest.raises(UserError, match="did you mean 'ppo'"):
        agent_class("pppo")


def test_names_in_settings_are_those_of_the_code() -> None:
    assert tuple(OPTIMIZERS) == agent.OPTIMIZERS
    assert tuple(ACTIVATIONS) == networks.ACTIVATIONS
    assert tuple(TARGETS) == on_policy.ADVANTAGES
