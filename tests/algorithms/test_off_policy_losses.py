"""Targets and losses of DQN, DDPG and TD3, and n-step returns from the ring, against the golden numbers."""

from __future__ import annotations

import pytest
import torch

from tests.learning.helpers import CPU, Golden, close
from warprun.algorithms.dqn import dqn_loss, dqn_target
from warprun.algorithms.td3 import critic_loss, critic_target, smoothed
from warprun.learning.critics import Actor, Critics, DuelingQNetwork, QNetwork, Trained
from warprun.learning.optimizers import OptimizerConfig
from warprun.learning.settings import LayersConfig


def test_dqn(golden: Golden) -> None:
    g = golden("dqn")
    q = g["q"].gather(-1, g["action"].long()[:, None]).squeeze(-1)
    discount = g["gamma"] * ~g["terminated"].bool()
    single = dqn_target(g["q_next_target"], None, g["reward"], discount)
    double = dqn_target(g["q_next_target"], g["q_next_online"], g["reward"], discount)
    close(dqn_target(g["q_next_target"], None, g["reward"], g["gamma"] ** 3 * ~g["terminated"]), g["target_nstep3"])
    ones = torch.ones_like(q)
    assert (g["truncated"].bool() & (discount > 0)).any(), "a truncated row bootstraps"
    close(single, g["target"])
    close(double, g["double_target"])
    close(q - single, g["td_error"])
    close(q - double, g["double_td_error"])
    close(dqn_loss(q, single, ones), g["huber_loss"])
    close(dqn_loss(q, double, ones), g["double_huber_loss"])
    close(dqn_loss(q, single, g["is_weight"]), g["weighted_huber_loss"])


def golden_networks(g: dict[str, torch.Tensor]) -> tuple[Trained[Actor], Trained[Critics]]:
    """Return an actor and twin critics with the golden parameters, targets included."""
    config = LayersConfig([len(g["net_actor_0"])])
    features, components = g["state"].shape[1], g["action"].shape[1]
    actor = Trained(Actor(features, components, config).double(), OptimizerConfig(), 1e-3, CPU)
    critics = Trained(Critics(features, components, config, 2).double(), OptimizerConfig(), 1e-3, CPU)

    def put(module: torch.nn.Module, name: str) -> None:
        for n, parameter in enumerate(module.parameters()):
            parameter.data.copy_(g[f"net_{name}_{n}"])

    put(actor.network, "actor")
    put(actor.target, "actor_t")
    for k in (0, 1):
        put(critics.network.each[k], f"q{k + 1}")
        put(critics.target.each[k], f"q{k + 1}_t")
    return actor, critics


def test_td3(golden: Golden) -> None:
    g = golden("td3")
    actor, critics = golden_networks(g)
    limit = float(g["action_limit"])
    # The golden networks act in the environment's units, ours within -1..1.
    next_action = smoothed(actor.target(g["next_state"]), g["noise"], float(g["sigma"]) / limit, float(g["noise_clip"]) / limit)
    discount = g["gamma"] * ~g["terminated"].bool()
    close(limit * next_action, g["smoothed_action"])
    next_values = critics.target(g["next_state"], limit * next_action)
    close(next_values[0], g["q1_next"])
    close(next_values[1], g["q2_next"])
    target = critic_target(next_values, g["reward"], discount)
    close(target, g["target"])
    values = critics.network(g["state"], g["action"])
    close(values[0], g["q1"])
    close(values[1], g["q2"])
    close(critic_loss(values, target, torch.ones_like(target)), g["critic_loss"])
    close(-critics.network.first(g["state"], limit * actor.network(g["state"])).mean(), g["actor_loss"])
    critics.update_target(float(g["tau"]))
    polyak = next(iter(critics.target.each[0].parameters()))
    close(polyak, g["polyak_q1_0"])


def test_ddpg(golden: Golden) -> None:
    g = golden("td3")
    actor, critics = golden_networks(g)
    limit = float(g["action_limit"])
    next_values = critics.target(g["next_state"], limit * actor.target(g["next_state"]))[:1]
    target = critic_target(next_values, g["reward"], g["gamma"] * ~g["terminated"].bool())
    close(target, g["ddpg_target"])
    values = critics.network(g["state"], g["action"])[:1]
    close(critic_loss(values, target, torch.ones_like(target)), g["ddpg_critic_loss"])


def test_dueling_values_are_those_of_the_definition() -> None:
    torch.manual_seed(0)
    network = DuelingQNetwork(3, 4, LayersConfig([8, 5])).double()
    obs = torch.randn(6, 3, dtype=torch.float64)
    values, hidden = network(obs), network.trunk(obs).relu()
    close(values.mean(-1), network.value(hidden).squeeze(-1))
    advantage = network.advantage(hidden)
    close(values[:, 1] - values[:, 0], advantage[:, 1] - advantage[:, 0])
    assert [layer.out_features for layer in network.trunk if isinstance(layer, torch.nn.Linear)] == [8, 5]


@pytest.mark.parametrize("tau", [0.005, 1.0])
def test_targets_follow(tau: float) -> None:
    trained = Trained(QNetwork(2, 3, LayersConfig([4])), OptimizerConfig(), 1e-3, CPU)
    trained.parameters.normal_()
    before = trained.target_parameters.clone()
    trained.update_target(tau)
    close(trained.target_parameters, tau * trained.parameters + (1 - tau) * before, 1e-6)
    assert trained.target.layers[0].weight.data_ptr() == trained.target_parameters.data_ptr()
