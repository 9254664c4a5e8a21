"""Gradient steps in kernels against the same steps in torch."""

from typing import Any

import pytest
import torch

from tests.agents import build
from tests.learning.helpers import environment, rollout
from warprun.environment import Box, Discrete, Space
from warprun.learning.kernels.cpu import updates as fused_updates
from warprun.learning.network_settings import LayersConfig
from warprun.learning.off_policy_settings import ReplayConfig

CASES: dict[str, tuple[str, Space, dict[str, Any]]] = {
    "dqn": ("dqn", Discrete(3), {}),
    "plain dqn": ("dqn", Discrete(3), {"double": False, "max_grad_norm": None, "n_step": 3, "normalize_obs": True}),
    "prioritized dqn": ("dqn", Discrete(3), {"replay": ReplayConfig(200, prioritized=True), "target_update_interval": 3, "tau": 0.3}),
    "ddpg": ("ddpg", Box(2), {"learning_rate_end": 1e-5}),
    "td3": ("td3", Box(2), {"network": LayersConfig(hidden=[24, 17], activation="tanh"), "max_grad_norm": 0.1}),
    "sac": ("sac", Box(2), {"network": LayersConfig(hidden=[24, 17], activation="tanh"), "max_grad_norm": 0.1, "learning_rate_end": 1e-5}),
    "sac prioritized": ("sac", Box(2), {"replay": ReplayConfig(200, prioritized=True), "target_update_interval": 3, "n_step": 2}),
    "sac constant": ("sac", Box(1), {"temperature_learning_rate": None, "temperature": 0.2, "normalize_obs": True}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batch_size", [50, 300])
def test_kernels_take_the_steps_that_torch_takes(case: str, batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_updates, "THREADS_FROM", 0)  # threads for small networks, too
    name, space, settings = CASES[case]
    env = environment(one=space)
    if name == "dqn":
        env = environment(one=Box(1))
        object.__setattr__(env.groups[0], "action", space)
    agents = []
    for threads, fused in ((1, False), (1, True), (2, True)):
        given = {"learning_starts": 0, "batch_size": batch_size, "replay": ReplayConfig(capacity=400), "utd_ratio": 0.2, **settings}
        given["replay"].capacity = 400
        agents.append(build(name, env, threads=threads, fused=fused, **given))
    for update in range(4):
        taken = rollout(env, horizon=6, n_envs=5, seed=update)
        metrics = [agent.update(taken, update / 4) for agent in agents]
    assert agents[0].learners[0].updates == 24
    states = [agent.state() for agent in agents]
    for key, expected in states[0].items():
        torch.testing.assert_close(states[1][key], expected, rtol=3e-4, atol=3e-5, msg=lambda text, key=key: f"{key}: {text}")
        assert torch.equal(states[1][key], states[2][key]), f"{key} depends on the number of threads"
    assert metrics[0].keys() == metrics[1].keys()
    for key, value in metrics[0].items():
        assert float(metrics[1][key]) == pytest.approx(float(value), rel=1e-3, abs=1e-4), key
