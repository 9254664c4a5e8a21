"""SAC against the equations of Haarnoja et al. 2018, written down once more in float64, and torch.distributions."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from tests.agents import build
from tests.environments.probes import PROBES
from tests.learning.helpers import close, rollout
from tests.learning.test_off_policy import single
from tests.simulation.rollouts import make
from warprun.environment import Box, Environment, Group
from warprun.learning.descent import Due
from warprun.learning.distributions import squashed
from warprun.learning.draws import normals
from warprun.learning.replay import Transitions
from warprun.learning.settings.networks import LayersConfig
from warprun.learning.settings.off_policy import ReplayConfig
from warprun.simulation.exploration import Exploration

DOUBLE = torch.float64


def test_log_densities_are_those_of_torch() -> None:
    random = torch.Generator().manual_seed(0)
    mean, log_std = torch.randn(2, 1000, 3, dtype=DOUBLE, generator=random).clamp(max=2.0)
    noise = torch.randn(1000, 3, dtype=DOUBLE, generator=random)
    action, log_density = squashed(torch.cat((mean, log_std), -1), noise)
    u = mean + log_std.exp() * noise
    close(action, u.tanh())
    near = u.abs().amax(-1) < 6.0  # beyond, the inverse of tanh has lost its digits
    assert near.float().mean() > 0.8
    of_torch = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()]).log_prob(action).sum(-1)
    close(log_density[near], of_torch[near], 1e-7)


def test_densities_add_up_to_one() -> None:
    """The density over -1..1 as a function of the action, by the trapezoidal rule in u."""
    mean, log_std = torch.tensor(0.4, dtype=DOUBLE), torch.tensor(-0.3, dtype=DOUBLE)
    u = torch.linspace(-8.0, 8.0, 200_001, dtype=DOUBLE)
    noise = (u - mean) / log_std.exp()
    output = torch.stack((mean, log_std)).expand(len(u), 2)
    action, log_density = squashed(output, noise[:, None])
    assert torch.trapezoid(log_density.exp(), action[:, 0]).item() == pytest.approx(1.0, abs=1e-6)


def test_far_out_the_log_density_stays_finite_and_exact() -> None:
    """1 - tanh^2 u rounds to 0 from |u| = 19 on in float64, from 9 on in float32.

    Its logarithm is log 4 - 2 |u| - 2 log(1 + e^-2|u|).
    """
    for dtype, tolerance in ((torch.float32, 1e-6), (DOUBLE, 1e-9)):
        u = torch.tensor([[-40.0], [-12.0], [0.0], [9.5], [30.0]], dtype=dtype)
        _, log_density = squashed(torch.cat((u, torch.zeros_like(u)), -1), torch.zeros_like(u))
        slope = math.log(4.0) - 2.0 * u.abs() - 2.0 * torch.log1p((-2.0 * u.abs()).exp())
        close(log_density, (-0.5 * math.log(2.0 * math.pi) - slope)[:, 0], tolerance)


def test_log_standard_deviations_are_limited() -> None:
    output = torch.tensor([[0.3, 5.0], [0.3, -30.0]], dtype=DOUBLE, requires_grad=True)
    noise = torch.full((2, 1), 0.1, dtype=DOUBLE)
    action, log_density = squashed(output, noise)
    close(action[:, 0], torch.tensor([math.tanh(0.3 + 0.1 * math.exp(2.0)), math.tanh(0.3)], dtype=DOUBLE), 1e-8)
    (slope,) = torch.autograd.grad(log_density.sum(), output)
    assert slope[:, 1].tolist() == [0.0, 0.0]


Weights = list[torch.Tensor]


def weights_of(network: torch.nn.Module) -> Weights:
    """Return the parameters of layers in float64, in their order: weight, bias, weight, bias, ..."""
    return [parameter.detach().double().clone().requires_grad_() for parameter in network.parameters()]


def relu_network(weights: Weights, x: torch.Tensor) -> torch.Tensor:
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = (x @ weight.T + bias).clamp(min=0.0)
    return x @ weights[-2].T + weights[-1]


def policy(weights: Weights, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return actions and log-densities: appendix C, without any care for rounding."""
    mean, log_std = relu_network(weights, obs).chunk(2, -1)
    u = mean + log_std.exp() * noise
    action = u.tanh()
    return action, (Normal(mean, log_std.exp()).log_prob(u) - (1.0 - action.square()).log()).sum(-1)


def smaller_value(critics: list[Weights], obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    both = torch.cat((obs, action), -1)
    return torch.minimum(*(relu_network(critic, both).squeeze(-1) for critic in critics))


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


BETA1 = 0.9
SETTINGS = {"network": LayersConfig(hidden=[24, 17]), "temperature": 0.3, "gamma": 0.9, "tau": 0.1, "n_step": 2}


def prepared(fused: bool, batch_size: int = 50, **settings: Any) -> tuple[Any, Transitions[torch.Tensor]]:
    """Return an untrained learner whose target critics differ from its critics, and a batch with weights."""
    env = single("sac")
    agent = build("sac", env, fused=fused, learning_starts=0, batch_size=batch_size, replay=ReplayConfig(400), **SETTINGS | settings)
    learner = agent.learners[0]
    learner.add(rollout(env, 30, 5, seed=2))
    learner.critics.target_parameters.mul_(0.9)
    learner.number.set(7)
    batch = learner.replay.draw(learner.number.tensor)
    weight = torch.rand(batch_size, generator=torch.Generator().manual_seed(1)) + 0.1
    return learner, batch._replace(weight=weight)


@pytest.mark.parametrize("fused", [False, True], ids=["torch", "kernels"])
def test_a_gradient_step_is_that_of_the_equations(fused: bool) -> None:
    """The mean of Adam after its first step is (1 - beta1) times the gradient."""
    learner, batch = prepared(fused)
    rows, components = batch.action.shape
    obs, given, reward, discount, next_obs, weight = (part.double() for part in batch[:6])
    noise, next_noise = (
        normals(rows * components, *stream).view(rows, components).double() for stream in (learner.actions, learner.next_actions)
    )
    actor, alpha = weights_of(learner.actor.network), 0.3
    critics, targets = ([weights_of(critic) for critic in source.each] for source in (learner.critics.network, learner.critics.target))

    # J_Q, equation 5 with the soft value of equation 3; the expectation over a' is a single draw.
    with torch.no_grad():
        next_action, next_log_prob = policy(actor, next_obs, next_noise)
        target = reward + discount * (smaller_value(targets, next_obs, next_action) - alpha * next_log_prob)
    values = [relu_network(critic, torch.cat((obs, given), -1)).squeeze(-1) for critic in critics]
    of_critics = sum(torch.stack([weight[row] * (value[row] - target[row]) ** 2 / 2 for row in range(rows)]).mean() for value in values)
    critics_gradient = torch.autograd.grad(of_critics, [parameter for critic in critics for parameter in critic])

    error, metrics = learner.gradient_step(batch, Due(target=True, actor=True))
    close(learner.critics.optimizer.mean.double() / (1 - BETA1), flat(critics_gradient), 2e-5)
    close(error.double(), torch.stack([(value - target).abs() for value in values]).amax(0), 2e-5)
    assert float(metrics["critic"]) == pytest.approx(of_critics.item(), rel=1e-5)
    assert float(metrics["q"]) == pytest.approx(torch.stack(values).mean().item(), rel=1e-4)

    # J_pi, equation 9, by the critics after their step: algorithm 1.
    critics = [weights_of(critic) for critic in learner.critics.network.each]
    action, log_prob = policy(actor, obs, noise)
    of_actor = (alpha * log_prob - smaller_value(critics, obs, action)).mean()
    close(learner.actor.optimizer.mean.double() / (1 - BETA1), flat(torch.autograd.grad(of_actor, actor)), 2e-5)
    assert float(metrics["actor"]) == pytest.approx(of_actor.item(), rel=1e-5)
    assert float(metrics["entropy"]) == pytest.approx(-log_prob.mean().item(), rel=1e-5)

    # J(alpha), equation 18, and its derivative by log alpha; the target entropy is minus the two components.
    log_alpha = torch.tensor(math.log(alpha), dtype=DOUBLE, requires_grad=True)
    of_temperature = (-log_alpha.exp() * (log_prob.detach() - 2.0)).mean()
    (slope,) = torch.autograd.grad(of_temperature, log_alpha)
    assert float(learner.temperature.optimizer.mean) / (1 - BETA1) == pytest.approx(float(slope), rel=1e-5)


@pytest.mark.parametrize("fused", [False, True], ids=["torch", "kernels"])
def test_targets_follow_the_critics_when_they_are_due(fused: bool) -> None:
    learner, batch = prepared(fused)
    before = learner.critics.target_parameters.clone()
    learner.gradient_step(batch, Due(target=False, actor=True))
    assert torch.equal(learner.critics.target_parameters, before)
    learner.gradient_step(batch, Due(target=True, actor=True))
    close(learner.critics.target_parameters, 0.9 * before + 0.1 * learner.critics.parameters, 1e-6)


@pytest.mark.parametrize("fused", [False, True], ids=["torch", "kernels"])
@pytest.mark.parametrize(("target_entropy", "sign"), [(20.0, 1), (-20.0, -1)])
def test_the_temperature_rises_while_the_entropy_is_below_its_target(fused: bool, target_entropy: float, sign: int) -> None:
    learner, batch = prepared(fused, target_entropy=target_entropy, temperature_learning_rate=0.01)
    seen = [float(learner.temperature.network())]
    for _ in range(5):
        learner.gradient_step(batch, Due(target=True, actor=True))
        seen.append(float(learner.temperature.network()))
    assert seen[0] == pytest.approx(0.3)
    assert all(sign * (after - before) > 0 for before, after in pairwise(seen))
    assert math.log(seen[1] / seen[0]) == pytest.approx(sign * 0.01, rel=1e-3)  # Adam's first step is as long as its rate


@pytest.mark.parametrize("fused", [False, True], ids=["torch", "kernels"])
def test_a_temperature_without_a_learning_rate_is_constant(fused: bool) -> None:
    learner, batch = prepared(fused, temperature_learning_rate=None)
    for _ in range(3):
        learner.gradient_step(batch, Due(target=True, actor=True))
    assert float(learner.exploration_metrics()["temperature"]) == pytest.approx(0.3)


def drawn(mean: float, log_std: float, numbers: tuple[float, float, float], steps: int, greedy: bool = False) -> torch.Tensor:
    """Return the actions [steps, 2000] that a simulator draws from a constant policy; episodes have 8 steps."""
    probe = PROBES["6 no end but the time limit"]
    base = probe.groups[0]
    group = Group("agent", 1, base.state, Box(1), Box(1, -1.0, 1.0), base.reset, base.observe)
    env = Environment((group,), probe.phases, time_limit=8)
    exploration = Exploration("squashed", {"agent": torch.tensor(numbers)})
    engine = make(env, "squashed", n_envs=2000, horizon=steps, exploration=exploration)
    engine.trajectory.groups["agent"].policy_output[:, 0] = torch.tensor([mean, log_std])
    return engine.collect(lambda trajectory, row: None, greedy).groups["agent"].action[:, :, 0, 0].clone()


def test_simulators_draw_from_the_squashed_distribution() -> None:
    u = drawn(0.4, -0.5, (0.0, 1.0, 1.0), 16).double().atanh()
    assert u.mean().item() == pytest.approx(0.4, abs=0.02)
    assert u.std().item() == pytest.approx(math.exp(-0.5), rel=0.02)
    z = ((u - 0.4) / math.exp(-0.5)).flatten().sort().values
    expected = Normal(0.0, 1.0).cdf(z)
    assert (expected - torch.linspace(0, 1, len(z), dtype=DOUBLE)).abs().max() < 0.015  # Kolmogorov and Smirnov
    apart = u - 0.4
    assert (apart[1:] * apart[:-1]).mean().abs() < 0.01


def test_the_best_action_is_the_tanh_of_the_mean() -> None:
    assert drawn(0.4, -0.5, (0.0, 1.0, 1.0), 2, greedy=True).unique().tolist() == pytest.approx([math.tanh(0.4)], abs=1e-6)


def test_before_learning_starts_actions_are_uniform() -> None:
    action = drawn(0.9, -3.0, (1.0, 1.0, 1.0), 16)
    assert torch.histc(action, 4, -1.0, 1.0).div(action.numel()).tolist() == pytest.approx([0.25] * 4, abs=0.02)


def test_log_standard_deviations_of_draws_are_limited_too() -> None:
    assert drawn(0.4, -50.0, (0.0, 1.0, 1.0), 2).unique().tolist() == pytest.approx([math.tanh(0.4)], abs=1e-6)
    u = drawn(0.0, 50.0, (0.0, 1.0, 1.0), 8).double()
    inside = (u.abs() < math.tanh(2.0)).double().mean().item()
    assert inside == pytest.approx(float(2 * Normal(0.0, 1.0).cdf(torch.tensor(2.0 / math.exp(2.0))) - 1), abs=0.02)


def test_correlated_draws_have_the_distribution_of_the_policy() -> None:
    """theta = 0.2: correlation 0.8 from step to step, 0 at the start of an episode, and in the long run variance 1."""
    theta = 0.2
    z = drawn(0.0, 0.0, (0.0, math.sqrt(theta * (2 - theta)), theta), 16).double().atanh()
    variance = [1.0 - (1 - theta) ** (2 * (t % 8 + 1)) for t in range(16)]
    assert z.square().mean(1).tolist() == pytest.approx(variance, rel=0.12)
    assert ((z[6] * z[7]).mean() / z[6].square().mean()).item() == pytest.approx(1 - theta, abs=0.05)
    assert (z[7] * z[8]).mean().abs() < 0.05
    learner, _ = prepared(False, noise_theta=theta)
    learner.explore(0.5)
    assert learner.exploration.tolist() == pytest.approx([0.0, 0.6, 0.2])
