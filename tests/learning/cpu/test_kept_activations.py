"""A gradient that takes activations from the rollout is the one that computes them again, bit for bit."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from warprun.config.compose import compose
from warprun.config.schema import Config
from warprun.learning.settings import byte_counts
from warprun.learning.settings.byte_counts import RunSizes
from warprun.runs.build import make_agent, make_simulator, make_training_simulator, set_up

CARTPOLE = ["env=cartpole", "agent.network.hidden=[24,16]"]
CASES: dict[str, list[str]] = {
    "a tile that is cut": [*CARTPOLE, "n_envs=100"],
    "narrow blocks": [*CARTPOLE, "n_envs=13"],
    "two vectors": [*CARTPOLE, "n_envs=30"],
    "whole blocks": [*CARTPOLE, "n_envs=128", "agent.normalize_obs=false"],
    "real actions, two trunks": ["env=pendulum", "n_envs=70", "agent.network.hidden=[16,8]", "agent.network.shared=false"],
    "steps by torch": ["env=kuramoto_sivashinsky", "n_envs=70", "agent.network.hidden=[16]", "agent.horizon=4"],
    "masks": ["env=catalysis", "n_envs=90", "agent.network.hidden=[16]", "agent.horizon=8"],
}


def config_of(*overrides: str) -> Config:
    return compose([*overrides, "agent=a2c", "tuned=none", "device=cpu", "concurrency.threads=2"])


def train(config: Config, keeps: bool, updates: int = 4) -> tuple[Any, Any]:
    """Return the agent and the simulator after some updates."""
    setup = set_up(config)
    agent = make_agent(setup)
    plain = make_simulator(setup, config.n_envs, config.agent.horizon, config.seed, agent, staggered=config.staggered)
    simulator = make_training_simulator(setup, agent) if keeps else plain
    simulator.prepare()
    for _ in range(updates):
        agent.update(simulator.collect(agent.act), 0.0)
    return agent, simulator


@pytest.mark.by_default(2)
@pytest.mark.parametrize("case", CASES)
def test_not_a_bit_differs(case: str) -> None:
    config = config_of(*CASES[case])
    (keeping, simulator), (computing, other) = train(config, True), train(config, False)
    assert simulator.trajectory.activations
    assert not other.trajectory.activations
    for name, tensor in keeping.state().items():
        assert torch.equal(tensor, computing.state()[name]), name


def test_what_is_kept_is_what_torch_computes() -> None:
    config = config_of(*CASES["a tile that is cut"])
    agent, simulator = train(config, True)
    trajectory = simulator.collect(agent.act)
    (group,), (learner,), (kept,) = trajectory.groups.values(), agent.learners, trajectory.activations.values()
    network, normalizer = learner.policy.kernel_network(), learner.policy.normalizer
    horizon, rows = config.agent.horizon, network.rows
    # Two tiles: one with all 64 columns, one with 48 of which 36 are environments.
    whole, part = kept[0].permute(1, 0, 2), kept[1].flatten()[: horizon * rows * 48].view(horizon, rows, 48)[:, :, :36].transpose(0, 1)
    columns = torch.cat((whole, part), 2).flatten(1)
    torch.testing.assert_close(columns[network.value_row], group.value.flatten())
    obs = group.obs[:-1].flatten(0, 2)
    torch.testing.assert_close(columns[: obs.shape[1]], normalizer(obs).T)
    hidden = columns[obs.shape[1] : network.policy_row]
    assert len(hidden) == 24 + 16
    assert float(hidden.abs().max()) <= 1.0
    assert float(hidden.std()) > 0.01


def test_the_gradient_takes_them() -> None:
    """What a rollout keeps decides the update; but not the first one, which normalises observations otherwise than the rollout did."""
    config = config_of(*CASES["a tile that is cut"])
    changed = []
    for updates in (0, 1):
        results = []
        for factor in (1.0, 0.5):
            agent, simulator = train(config, True, updates)
            trajectory = simulator.collect(agent.act)
            for kept in trajectory.activations.values():
                kept.mul_(factor)
            agent.update(trajectory, 0.0)
            results.append(agent.learners[0].policy.parameters.clone())
        changed.append(not torch.equal(*results))
    assert changed == [False, True]


@pytest.mark.parametrize(
    "overrides",
    [
        [*CARTPOLE, "n_envs=100000", "agent.horizon=64"],  # too many bytes
        [*CARTPOLE, "n_envs=11"],  # too few for a block of 16
        [*CARTPOLE, "n_envs=18"],  # or of 32
        [*CARTPOLE, "n_envs=100", "engine.keep_activations=false"],
        [*CARTPOLE, "n_envs=100", "engine.gradients=torch"],
        [*CARTPOLE, "n_envs=100", "engine.fused=false"],
    ],
)
def test_nothing_is_kept_that_nobody_takes(overrides: list[str]) -> None:
    setup = set_up(config_of(*overrides))
    assert make_agent(setup).kept == {}


def test_groups_of_several_actors_compute_them_again() -> None:
    setup = set_up(config_of("env=tag_gridworld", "n_envs=64"))
    sizes = {group.name: group.size for group in setup.environment.spec.groups}
    assert max(sizes.values()) > 1
    assert make_agent(setup).kept.keys() == {name for name, size in sizes.items() if size == 1}


def test_ppo_computes_them_again() -> None:
    config = config_of(*CARTPOLE, "n_envs=100")
    setup = set_up(replace(config, agent=compose([*CARTPOLE, "agent=ppo", "tuned=none"]).agent))
    assert make_agent(setup).kept == {}


def test_the_memory_of_a_run_includes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(*CARTPOLE, "n_envs=100")
    setup = set_up(config)
    sizes = RunSizes(config.n_envs, 2, kernel_networks=True, kernel_gradients=True, recurrent_slopes=False, keeps=True, on_gpu=False)
    with_them = config.agent.memory(setup.environment.spec, sizes).networks
    simulator = make_training_simulator(setup, make_agent(setup))
    (kept,) = simulator.trajectory.activations.values()
    monkeypatch.setattr(byte_counts, "ACTIVATIONS_BYTES", 0)
    assert make_agent(setup).kept == {}
    assert with_them - config.agent.memory(setup.environment.spec, sizes).networks == kept.nbytes
