"""Policy outputs and values of the acting kernel against those of torch."""

from __future__ import annotations

import pytest
import torch

from tests.agents import build
from warprun.learning.network_settings import LayersConfig, NetworkConfig
from warprun.simulation import trajectory
from warprun.spec import Box, Discrete, GroupSpec, MultiDiscrete, Spec

SPACES = {"discrete": Discrete(5), "choices": MultiDiscrete((3, 2)), "box": Box(2, -1.0, 1.0)}
ALGORITHMS = [("a2c", "discrete"), ("ppo", "choices"), ("ppo", "box"), ("dqn", "discrete"), ("td3", "box"), ("sac", "box")]
NETWORKS = {
    "on-policy": [NetworkConfig(hidden=[32, 16]), NetworkConfig(hidden=[24], activation="relu", shared=False)],
    "off-policy": [LayersConfig(hidden=[32, 16], activation="tanh"), LayersConfig(hidden=[24], activation="relu")],
}


@pytest.mark.parametrize("network", [0, 1])
@pytest.mark.parametrize(("algorithm", "space"), ALGORITHMS)
def test_kernels_act_as_torch_does(algorithm: str, space: str, network: int) -> None:
    spec = Spec((GroupSpec("agent", 3, Box(7), SPACES[space]), GroupSpec("other", 1, Box(2), SPACES[space])))
    kind = "off-policy" if algorithm in ("dqn", "td3", "sac") else "on-policy"
    for n_envs in (1, 11, 200):
        settings = {"n_envs": n_envs, "threads": 2, "network": NETWORKS[kind][network], "normalize_obs": True}
        kernels, plain = (build(algorithm, spec, fused=fused, **settings) for fused in (True, False))
        for learner in (*kernels.learners, *plain.learners):
            normalizer = learner.policy.normalizer if kind == "on-policy" else learner.normalizer
            normalizer.shift.fill_(0.3)
            normalizer.scale.fill_(1.7)
        rollouts = []
        for agent in (kernels, plain):
            rollout = trajectory.allocate(spec, 2, n_envs, torch.device("cpu"))
            for group in rollout.groups.values():
                group.obs.copy_(torch.randn(group.obs.shape, generator=torch.Generator().manual_seed(3)))
                group.policy_output.fill_(9.0)
            agent.act(rollout, 1)
            rollouts.append(rollout)
        for name in ("agent", "other"):
            one, other = (rollout.groups[name] for rollout in rollouts)
            torch.testing.assert_close(one.policy_output, other.policy_output, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(one.value, other.value, rtol=1e-5, atol=1e-5)
            written = one.policy_output != 9.0
            assert written.all() if algorithm != "td3" else written[..., :2].all() and not written[..., 2:].any()
