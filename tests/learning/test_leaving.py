"""A2C and PPO where actors leave episodes before they end: gradients, statistics and targets without the rows of those who have left."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.agents import build
from tests.learning.papers import a2c_loss, ppo_loss
from warprun.algorithms import agent_names, config_class
from warprun.config.checks import check_requirements
from warprun.errors import UserError
from warprun.learning.distributions import evaluate
from warprun.learning.operations import average, averaging
from warprun.simulation.trajectory import GroupTrajectory, Trajectory, allocate
from warprun.spec import Box, Discrete, GroupSpec, Spec

T, N, A = 12, 7, 3
SPEC = Spec((GroupSpec("team", A, Box(4), Discrete(3), leaves=True),), time_limit=5)
GAMMA, LAMBDA, VALUE_COEF, ENTROPY_COEF = 0.95, 0.9, 0.5, 0.02
SETTINGS = {"gamma": GAMMA, "gae_lambda": LAMBDA, "value_coef": VALUE_COEF, "entropy_coef": ENTROPY_COEF, "advantage": "gae"}
PLAIN = {"normalize_obs": False, "normalize_reward": False}
ONE_STEP = {"a2c": {"normalize_advantage": True}, "ppo": {"epochs": 1, "minibatches": 1, "normalize_advantage": True, "clip_value": None}}
TOLERANCE = 2e-6


def rollout(seed: int = 0) -> tuple[Trajectory, GroupTrajectory]:
    """Return episodes of up to five steps, which actors leave at random; the last actor of an environment leaves only where it ends."""
    random = torch.Generator().manual_seed(seed)
    trajectory = allocate(SPEC, T, N, torch.device("cpu"))
    group = trajectory.groups["team"]
    assert group.alive is not None and group.final_alive is not None
    for tensor in (group.obs, group.final_obs, group.reward):
        tensor.normal_(generator=random)
    group.log_prob.copy_(-torch.rand(group.log_prob.shape, generator=random))
    group.action.copy_(torch.randint(0, 3, group.action.shape, generator=random))
    alive, clock, cuts = (
        torch.rand(N, A, generator=random) < 0.8,
        torch.randint(0, 4, (N,), generator=random),
        torch.zeros(N, dtype=torch.long),
    )
    for t in range(T):
        group.alive[t] = alive
        group.reward[t] *= alive
        alive = alive & (torch.rand(N, A, generator=random) < 0.7)
        clock += 1
        for n in range(N):
            over = not alive[n].any() or bool(torch.rand((), generator=random) < 0.05)
            cut = not over and int(clock[n]) >= 5
            trajectory.terminated[t, n], trajectory.truncated[t, n] = over, cut
            if cut:
                group.final_alive[cuts[n], n] = alive[n]
                cuts[n] += 1
            if over or cut:
                alive[n], clock[n] = True, 0
    group.alive[T] = alive
    return trajectory, group


def agent_and_rollout(name: str, fused: bool, **settings: Any) -> tuple[Any, Trajectory, GroupTrajectory]:
    trajectory, group = rollout()
    agent = build(name, SPEC, n_envs=N, fused=fused, **(PLAIN | SETTINGS | ONE_STEP[name] | settings))
    for t in range(T):
        agent.act(trajectory, t)
    return agent, trajectory, group


def gradient_of(agent: Any, trajectory: Trajectory) -> torch.Tensor:
    """Return the gradient of an update, which it does not take."""
    found: list[torch.Tensor] = []

    def step(gradient: torch.Tensor) -> torch.Tensor:
        found.append(gradient.clone())
        return torch.zeros(())

    (learner,) = agent.learners
    learner.operations = learner.operations._replace(step=step, step_of_many=averaging(step, average))
    agent.update(trajectory, 0.0)
    return found[0]


def reference(name: str, agent: Any, trajectory: Trajectory, *, leaving_ends: bool = True, drop: bool = True) -> torch.Tensor:
    """Return the gradient by loops over single actors and autograd, in float64.

    Two leaks can be planted: `leaving_ends` False lets values flow from the observation after an actor has left, `drop` False keeps the
    rows of those who have left.
    """
    group, policy = trajectory.groups["team"], agent.learners[0].policy
    assert group.alive is not None and group.final_alive is not None
    module = copy.deepcopy(policy.module).double()

    def value_of(obs: torch.Tensor) -> float:
        with torch.no_grad():
            return float(module(obs.double()[None])[1])

    rows, advantages, returns = [], [], []
    for n in range(N):
        slot = trajectory.final_slot()[:, n]
        for a in range(A):
            after = 0.0
            for t in reversed(range(T)):
                alive = bool(group.alive[t, n, a])
                if not alive and drop:
                    after = 0.0
                    continue
                value = value_of(group.obs[t, n, a])
                if trajectory.terminated[t, n]:
                    follows, goes_on = 0.0, False
                elif trajectory.truncated[t, n]:
                    stays = bool(group.final_alive[slot[t], n, a]) or not leaving_ends
                    follows, goes_on = value_of(group.final_obs[slot[t], n, a]) if stays else 0.0, False
                else:
                    stays = bool(group.alive[t + 1, n, a]) or not leaving_ends
                    follows, goes_on = value_of(group.obs[t + 1, n, a]) if stays else 0.0, stays
                delta = float(group.reward[t, n, a]) + GAMMA * follows - value
                after = delta + (GAMMA * LAMBDA * after if goes_on else 0.0)
                rows.append((t, n, a))
                advantages.append(after)
                returns.append(after + value)
    t, n, a = (torch.tensor(numbers) for numbers in zip(*rows, strict=True))
    advantage, wanted = torch.tensor(advantages).double(), torch.tensor(returns).double()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    output, value = module(group.obs[:-1][t, n, a].double())
    log_prob, entropy = evaluate(policy.space, output, None, group.action[t, n, a])
    if name == "a2c":
        loss = a2c_loss(log_prob, entropy, value, advantage, wanted, VALUE_COEF, ENTROPY_COEF).loss
    else:
        old = group.log_prob[t, n, a].double(), group.value[t, n, a].double()
        loss = ppo_loss(log_prob, entropy, value, *old, advantage, wanted, 0.2, None, VALUE_COEF, ENTROPY_COEF).loss
    return torch.cat([slope.flatten() for slope in torch.autograd.grad(loss, list(module.parameters()))])


@pytest.mark.parametrize("name", ["a2c", "ppo"])
@pytest.mark.parametrize("fused", [False, True])
def test_the_gradient_is_that_of_the_rows_of_actors_in_the_episode(name: str, fused: bool) -> None:
    agent, trajectory, group = agent_and_rollout(name, fused)
    assert group.alive is not None and 0.3 < float(group.alive.float().mean()) < 0.95
    expected = reference(name, agent, trajectory)
    found = gradient_of(agent, trajectory).double()
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    for leak in ({"leaving_ends": False}, {"drop": False}):
        planted = reference(name, agent, trajectory, **leak)
        assert (planted - expected).abs().max() > 1000 * TOLERANCE, leak


@pytest.mark.parametrize("name", ["a2c", "ppo"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "settings", [{}, {"normalize_obs": True, "normalize_reward": True}, {"advantage": "vtrace"}, {"advantage": "nstep"}]
)
def test_nothing_of_an_actor_that_has_left_changes_a_bit(name: str, fused: bool, settings: dict[str, Any]) -> None:
    """Neither what it observes, does or would be worth, nor its final observation; the reward is 0, which the engine sees to."""
    states = []
    for planted in (False, True):
        agent, trajectory, group = agent_and_rollout(name, fused, **settings)
        if planted:
            assert group.alive is not None and group.final_alive is not None
            away = ~group.alive
            group.obs[away] = 1e3
            group.value[away[:-1]] = -77.0
            group.log_prob[away[:-1]] = -9.0
            group.action[away[:-1]] = 2
            group.final_obs[~group.final_alive] = -1e3
        metrics = agent.update(trajectory, 0.0)
        states.append({key: tensor.clone() for key, tensor in agent.state().items()} | dict(metrics))
    for key, tensor in states[0].items():
        assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(states[1][key])), key


@pytest.mark.parametrize("fused", [False, True])
def test_an_update_without_anybody_in_the_episode_teaches_nothing_harmful(fused: bool) -> None:
    agent, trajectory, group = agent_and_rollout("ppo", fused, minibatches=4)
    assert group.alive is not None and group.final_alive is not None
    group.alive.zero_()
    group.final_alive.zero_()
    group.reward.zero_()
    metrics = agent.update(trajectory, 0.0)
    assert all(torch.as_tensor(number).isfinite().all() for number in metrics.values())
    assert agent.learners[0].policy.parameters.isfinite().all()


def test_agents_that_replay_transitions_are_refused() -> None:
    for name in agent_names():
        if name in ("a2c", "ppo"):
            check_requirements(name, SPEC)
        else:
            (space,) = config_class(name).requirements.spaces
            group = replace(SPEC.groups[0], action=Discrete(3) if space is Discrete else Box(2, low=-1.0, high=1.0))
            with pytest.raises(UserError, match=rf"agent={name} does not support actors that leave .*; agents that can: a2c, ppo"):
                check_requirements(name, replace(SPEC, groups=(group,)))
