"""Recurrent layers by kernels: values and gradients against torch in float64, and agents that learn by them."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.agents import build
from tests.learning.test_recurrent import KINDS, engine_for, maze
from warprun.config.registry import import_environment
from warprun.learning.descent import Trained
from warprun.learning.kernels.cpu.recurrent import compute_by_kernels
from warprun.learning.kernels.cpu.rows import layers
from warprun.learning.networks import hidden_layers
from warprun.learning.recurrent import Recurrent
from warprun.learning.settings.networks import LayersConfig, NetworkConfig

UNITS: dict[str, Any] = {"hidden": [16], "units": [16], "after": [16]}


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether no number of `found`, float32, is farther off than 1e-5 of the largest of `expected`, float64."""
    return bool((found - expected).abs().max() <= 1e-5 * expected.abs().max())


def made(kind: str, sequence: int | None, units: tuple[int, ...]) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(kind, nn.Sequential(nn.Linear(5, 7), nn.Tanh()), [7, *units], nn.Sequential(nn.Linear(units[-1], 3)), sequence)


def computed(network: Recurrent, steps: int, count: int) -> tuple[torch.Tensor, ...]:
    """Return outputs, carries and gradients: ends of episodes at any step, and what was remembered before."""
    rng = torch.Generator().manual_seed(1)
    like = next(network.parameters())
    x = torch.randn(steps, count, 5, generator=rng).to(like).requires_grad_()
    begins = (torch.rand(steps, count, generator=rng) < 0.2).to(like.device)
    carry = torch.randn(count, network.carry, generator=rng).to(like)
    if network.sequence:
        carry[:, -1] = torch.randint(0, network.sequence + 1, (count,), generator=rng).to(like)
    y, last = network.unroll(x, carry, begins)
    _, carries = network.trace(x, carry, begins)
    weights = torch.linspace(-1.0, 1.0, y.numel(), dtype=y.dtype).view(y.shape).to(like.device)
    gradients = torch.autograd.grad((y * weights + y.square()).sum(), [x, *network.parameters()])
    torch.testing.assert_close(carries[-1], last, rtol=0.0, atol=0.0, equal_nan=True)
    return y.detach(), carries.detach(), *gradients


@pytest.mark.parametrize(("steps", "count"), [(9, 45), (1, 3), (5, 64)])
@pytest.mark.parametrize("sequence", [None, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_values_carries_and_gradients_are_those_of_torch(kind: str, sequence: int | None, steps: int, count: int) -> None:
    """Two layers of different sizes, tiles that are not full."""
    network = made(kind, sequence, (32, 48))
    by_torch = computed(copy.deepcopy(network).double(), steps, count)
    compute_by_kernels(network)
    assert network.over_steps
    for number, (found, expected) in enumerate(zip(computed(network, steps, count), by_torch, strict=True)):
        assert close(found, expected), number


def test_units_that_do_not_fill_vectors_are_left_to_torch() -> None:
    network = Recurrent("gru", nn.Sequential(), [3, 16, 12], nn.Sequential(), None)
    compute_by_kernels(network)
    assert network.over_steps is None


@pytest.mark.by_default(0)
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_threads_takes_the_same_bits(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """And learns, but for rounding, what torch does."""
    monkeypatch.setattr("warprun.learning.slices.ROWS", 24)
    found = []
    for threads, fused in ((1, True), (2, True), (1, False)):
        network = NetworkConfig(type=kind, **UNITS)
        agent = build("ppo", maze(), n_envs=6, threads=threads, fused=fused, network=network, minibatches=1)
        assert (agent.learners[0].policy.network.policy.over_steps is not None) == fused
        engine = engine_for(agent, maze())
        agent.update(engine.collect(agent.act), 0.0)
        found.append(agent.learners[0].policy.parameters.clone())
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], found[2], rtol=0.0, atol=1e-4)


@pytest.mark.parametrize(("name", "env"), [("dqn", "t_maze"), ("sac", "pendulum"), ("td3", "pendulum")])
def test_networks_of_off_policy_agents_and_their_targets(name: str, env: str) -> None:
    environment = import_environment(f"warprun.envs.{env}", {})[0]
    agent = build(name, environment, fused=True, network=LayersConfig(type="lstm", **UNITS))
    trained = agent.learners[0].trained.values()
    modules = [each.network for each in trained] + [each.target for each in trained if isinstance(each, Trained)]
    networks = [part for module in modules for part in module.modules() if isinstance(part, Recurrent)]
    assert len(networks) >= 2
    assert all(network.over_steps for network in networks)


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
def test_layers_around_the_memory_are_those_of_torch(activation: str) -> None:
    """Widths that fill vectors and others, an activation that kernels have not, slopes of inputs and none, tiles that are not full."""
    torch.manual_seed(0)
    parts = nn.Sequential(*hidden_layers([5, 16, 40, 24], activation), nn.Linear(24, 3))
    x = torch.randn(7, 11, 5)
    for needs_slope in (True, False):
        found, exact = x.clone().requires_grad_(needs_slope), x.double().requires_grad_(needs_slope)
        by_torch = copy.deepcopy(parts).double()
        y, expected = layers(parts, found), by_torch(exact)
        assert close(y, expected)
        wanted = [[*given.parameters(), *([seen] if needs_slope else [])] for given, seen in ((parts, found), (by_torch, exact))]
        gradients = (torch.autograd.grad(out.square().sum(), of) for out, of in zip((y, expected), wanted, strict=True))
        for own, other in zip(*gradients, strict=True):
            assert close(own, other)
