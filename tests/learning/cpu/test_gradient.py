"""The fused kernels against the stepwise path (rollouts) and against autograd in float64 (gradients)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.agents import build
from tests.environments import market
from tests.learning.helpers import environment
from tests.learning.papers import A2CLoss, PPOLoss, a2c_loss, ppo_loss
from tests.selection import few
from warprun.algorithms.settings import A2CConfig
from warprun.environment import Box, Discrete, Environment, MultiDiscrete, Space
from warprun.envs import acrobot, cartpole, mountain_car_continuous
from warprun.kernels.mlp import Network
from warprun.learning import distributions
from warprun.learning.batch import Batch, Spread
from warprun.learning.kernels.policy_gradient import PolicyGradient
from warprun.learning.on_policy import Learner
from warprun.learning.settings.networks import NetworkConfig
from warprun.simulation.device import choose
from warprun.simulation.kernel_engine import KernelEngine

CPU = torch.device("cpu")
ENVIRONMENTS = {
    "cartpole": cartpole.environment(),
    "acrobot": acrobot.environment,
    "mountain_car_continuous": mountain_car_continuous.environment,
    "market": market.environment,
}
NETWORKS = {
    "tanh": NetworkConfig(hidden=[64, 64]),
    "relu": NetworkConfig(hidden=[17, 5, 9], activation="relu", shared=False),
}


def engine(name: str, n_envs: int, networks: Mapping[str, Network] | None, horizon: int = 12, threads: int = 2) -> KernelEngine:
    env = ENVIRONMENTS[name]
    tables = env.tables(**env.options) if env.tables else None
    return KernelEngine(
        env,
        name,
        device=choose("cpu"),
        n_envs=n_envs,
        horizon=horizon,
        seed=5,
        params=env.params(),
        tables=tables,
        threads=threads,
        networks=networks,
        staggered=True,  # the kernels that training has, with episodes that are not cut off
        whole=True,
    )


def agent(env: Environment, n_envs: int, network: NetworkConfig, threads: int = 2, *, fused: bool = True) -> Any:
    made = build("a2c", env, n_envs=n_envs, threads=threads, fused=fused, network=network)
    for learner in made.learners:
        # Statistics of a run under way, and a policy that has opinions.
        generator = torch.Generator().manual_seed(1)
        assert learner.policy.normalizer
        learner.policy.normalizer.shift.copy_(0.1 * torch.randn(learner.policy.normalizer.shift.shape, generator=generator))
        learner.policy.normalizer.scale.fill_(1.3)
        learner.policy.parameters += 0.1 * torch.randn(learner.policy.parameters.shape, generator=generator)
    return made


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", few(ENVIRONMENTS, "cartpole", "mountain_car_continuous"))
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("n_envs", [1, 100])
@pytest.mark.parametrize("greedy", [False, True])
def test_a_fused_rollout_is_the_stepwise_one(name: str, network: str, n_envs: int, greedy: bool) -> None:
    actor = agent(ENVIRONMENTS[name], n_envs, NETWORKS[network], fused=False)
    stepwise, fused = engine(name, n_envs, None), engine(name, n_envs, actor.networks())
    stepwise.reset()
    fused.reset()
    for _ in range(2):  # the second begins where the first ended
        a, b = stepwise.collect(actor.act, greedy), fused.collect(actor.act, greedy)
        assert torch.equal(a.terminated, b.terminated)
        assert torch.equal(a.truncated, b.truncated)
        for group in a.groups:
            one, other = a.groups[group], b.groups[group]
            if one.action.dtype == torch.int32:
                assert torch.equal(one.action, other.action)
            if one.mask is not None and other.mask is not None:
                assert torch.equal(one.mask, other.mask)
            for tensor in ("action", "obs", "value", "log_prob", "reward", "final_obs"):
                torch.testing.assert_close(getattr(one, tensor), getattr(other, tensor), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", few(ENVIRONMENTS, "cartpole", "mountain_car_continuous"))
@pytest.mark.parametrize("fused", [False, True])
def test_a_policy_judges_its_own_actions_as_it_drew_them(name: str, fused: bool) -> None:
    """What V-trace learns from: ratios of 1, and the values of the rollout. Those of a policy that has learned since are different."""
    actor = agent(ENVIRONMENTS[name], 100, NETWORKS["tanh"], fused=fused)
    made = engine(name, 100, None)
    made.reset()
    trajectory = made.collect(actor.act)
    for learner in actor.learners:
        group = trajectory.groups[learner.name]
        drawn, values = group.log_prob.clone(), group.value.clone()
        torch.testing.assert_close(learner.judge(trajectory), drawn, rtol=1e-5, atol=2e-5)
        torch.testing.assert_close(group.value, values, rtol=1e-5, atol=2e-5)
        learner.policy.parameters += 0.05
        assert not torch.allclose(learner.judge(trajectory), drawn, atol=1e-3)
        assert not torch.allclose(group.value, values, atol=1e-3)


SPACES: dict[str, Space] = {"discrete": Discrete(3), "multi": MultiDiscrete((2, 4, 3)), "box": Box(2, -1.0, 1.0)}


def learner_for(algorithm: str, space: Space, network: NetworkConfig, device: torch.device = CPU, *, fused: bool = True) -> Learner[Any]:
    env = environment(only=space)
    own = {} if algorithm == "a2c" else {"clip_value": 0.3}
    made = build(algorithm, env, device=device, threads=2, seed=0, fused=fused, network=network, normalize_obs=False, **own)
    learner = made.learners[0]
    noise = torch.randn(learner.policy.parameters.shape, generator=torch.Generator().manual_seed(2))
    learner.policy.parameters += 0.2 * noise.to(device)
    learner.schedule(0.0)
    return learner


def rows_for(learner: Learner[Any], count: int, masked: bool) -> Batch:
    generator = torch.Generator().manual_seed(count)
    space = learner.policy.space
    obs = torch.randn(count, 3, generator=generator)
    mask = None
    if isinstance(space, Box):
        action = torch.randn(count, space.size, generator=generator)
    else:
        nvec = list(space.nvec) if isinstance(space, MultiDiscrete) else [space.n]
        if masked:
            mask = torch.rand(count, sum(nvec), generator=generator) > 0.4
            first = 0
            for n in nvec:
                mask[:, first] = True
                first += n
        picks = []
        first = 0
        for n in nvec:
            weights = torch.ones(count, n) if mask is None else mask[:, first : first + n].float()
            picks.append(torch.multinomial(weights, 1, generator=generator))
            first += n
        action = torch.cat(picks, 1).int()
    with torch.no_grad():
        output, value, _ = learner.policy.module.unroll(obs[None], obs.new_zeros(count, learner.policy.carry), torch.ones(1, count).bool())
        output, value = output[0], value[0]
        log_prob = distributions.evaluate(space, output, mask, action)[0]
    # An old policy that differs, so that some ratios and values are clipped.
    old = log_prob + 0.3 * torch.randn(count, generator=generator)
    old_value = value + torch.randn(count, generator=generator)
    advantage, returns = torch.randn(count, generator=generator), 2 * torch.randn(count, generator=generator)
    return Batch(obs, mask, action, old, old_value, advantage, returns, Spread.of(advantage, returns))


def exact_gradient(algorithm: str, learner: Learner[Any], rows: Batch) -> tuple[np.ndarray, list[float]]:
    """Return autograd's gradient and the terms that a learner shows, in float64."""
    policy, config = learner.policy, learner.config
    double = [leaf.detach().double().requires_grad_() for leaf in policy.layer_parameters]
    names = [name for name, _ in policy.network.named_parameters()]
    parameters = dict(zip(names, double, strict=False))
    output, value = torch.func.functional_call(policy.network, parameters, (rows.obs.double(),))
    if isinstance(policy.space, Box):
        output = torch.cat((output, double[-1].expand_as(output)), -1)
    log_prob, entropy = distributions.evaluate(policy.space, output, rows.mask, rows.action)
    coefficient = float(learner.entropy_coef)
    terms: A2CLoss | PPOLoss
    if algorithm == "a2c":
        terms = a2c_loss(log_prob, entropy, value, rows.advantage.double(), rows.returns.double(), config.value_coef, coefficient)
    else:
        old, old_value = rows.log_prob.double(), rows.value.double()
        terms = ppo_loss(
            log_prob,
            entropy,
            value,
            old,
            old_value,
            rows.advantage.double(),
            rows.returns.double(),
            config.clip,
            config.clip_value,
            config.value_coef,
            coefficient,
        )
    gradients = torch.autograd.grad(terms[0], double)
    return torch.cat([g.reshape(-1) for g in gradients]).numpy(), [float(getattr(terms, name).detach()) for name in learner.shows[:-1]]


@pytest.mark.by_default(30)
@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("count", [1, 130, 3000])
def test_the_fused_gradient_is_autograds(algorithm: str, space: str, masked: bool, network: str, count: int) -> None:
    if masked and space == "box":
        pytest.skip("real actions have no mask")
    learner = learner_for(algorithm, SPACES[space], NETWORKS[network])
    rows = rows_for(learner, count, masked)
    exact, terms = exact_gradient(algorithm, learner, rows)
    # All rows twice, the picked ones in another order: `order` must find them.
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    back = torch.argsort(order)
    shuffled = rows.each(lambda tensor: torch.cat((tensor[order], torch.zeros_like(tensor))))
    assert isinstance(learner.operations.gradient, PolicyGradient)
    gradient, means = learner.gradient(shuffled, rows.advantage, back)
    scale = np.abs(exact).max()
    np.testing.assert_allclose(gradient.numpy(), exact, rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(means.numpy(), terms, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
def test_the_compiled_source_names_its_loss(algorithm: str) -> None:
    gradient = learner_for(algorithm, SPACES["multi"], NETWORKS["tanh"]).operations.gradient
    assert isinstance(gradient, PolicyGradient)
    source = Path(str(gradient._gradient.module.__file__))
    assert source.parent.name.startswith(f"{algorithm}_loss-")
    assert f"The gradient of the loss {algorithm}_loss;" in source.read_text()


def test_a_network_of_ones_own_stays_with_torch() -> None:
    fusion = A2CConfig(network=NetworkConfig(activation="gelu")).fusion(cartpole.environment().spec)
    assert fusion.network_rows is None
    assert fusion.why_not
