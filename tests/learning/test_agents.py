"""A2C and PPO on hand-made rollouts."""

from typing import Any

import pytest
import torch

from tests.agents import build
from tests.learning.helpers import SPACES, close, environment, rollout
from warprun.algorithms.settings import A2CConfig
from warprun.environment import Box, Environment, MultiDiscrete, Space
from warprun.errors import UserError
from warprun.learning.distributions import evaluate
from warprun.learning.draws import permutation
from warprun.learning.settings.networks import NetworkConfig
from warprun.learning.slices import ROWS
from warprun.simulation.trajectory import Trajectory
from warprun.state import restore

NAMES = ("a2c", "ppo")
EVERYTHING = {"normalize_obs": True, "normalize_reward": True, "entropy_coef_end": 0.0, "learning_rate_end": 0.0}


def make(name: str, env: Environment, threads: int = 1, *, n_envs: int = 5, fused: bool = False, **settings: Any) -> Any:
    """Return an agent that normalises nothing unless told to: the numbers are those of the rollout."""
    return build(name, env, n_envs=n_envs, threads=threads, fused=fused, **{"normalize_obs": False, "normalize_reward": False, **settings})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("settings", [{}, EVERYTHING, {"advantage": "nstep", "optimizer": {"name": "rmsprop"}}])
def test_an_update_changes_every_parameter_and_reports(name: str, settings: dict[str, Any]) -> None:
    env = environment(**SPACES)
    settings = {**settings, "groups": {group: {"optimizer": settings.get("optimizer", {})} for group in SPACES}}
    settings.pop("optimizer", None)
    agent, trajectory = make(name, env, **settings), rollout(env)
    for t in range(trajectory.horizon):
        agent.act(trajectory, t)
    before = [learner.policy.parameters.clone() for learner in agent.learners]
    metrics = agent.update(trajectory, 0.5)
    expected = {"policy", "value", "entropy", "grad_norm", "explained_variance", "learning_rate"}
    if name == "ppo":
        expected |= {"approx_kl", "clip_fraction"}
    assert set(metrics) == {f"loss/{group}/{key}" for group in SPACES for key in expected}
    assert all(value.shape == () and value.isfinite() for value in metrics.values())
    assert "loss/policy" in make(name, environment(one=SPACES["one"])).update(rollout(environment(one=SPACES["one"])), 0.0)
    for learner, old in zip(agent.learners, before, strict=True):
        assert (learner.policy.parameters != old).float().mean() > 0.9
        assert learner.policy.parameters.isfinite().all()


def test_act_writes_in_place() -> None:
    env = environment(**SPACES)
    agent, trajectory = make("a2c", env, network=A2CConfig().network), rollout(env)
    agent.act(trajectory, 2)
    for learner in agent.learners:
        group = trajectory.groups[learner.name]
        output, value = learner.policy(group.obs[2].flatten(0, 1))
        assert torch.equal(group.policy_output.flatten(0, 1), output)
        assert torch.equal(group.value[2].flatten(), value)
    assert (trajectory.groups["real"].policy_output[..., 2:] == 0).all()


def test_next_value_tells_the_ends_of_episodes_apart() -> None:
    """Terminated: nothing; truncated: the final observation of the right slot; else the next value, at the end that of the last row."""
    env = environment(one=SPACES["one"])
    agent, trajectory = make("a2c", env), rollout(env, horizon=6, n_envs=3)
    trajectory.terminated.zero_()
    trajectory.truncated.zero_()
    trajectory.terminated[1, 0] = trajectory.truncated[1, 1] = trajectory.truncated[5, 1] = trajectory.terminated[5, 2] = True
    learner, group = agent.learners[0], trajectory.groups["one"]
    found = learner.reference.next_value(trajectory)

    def v(obs: torch.Tensor) -> torch.Tensor:
        return learner.policy.values(obs)

    assert group.final_obs.shape[0] == 2
    close(found[0], group.value[1], 1e-6)
    assert (found[1, 0] == 0).all()
    assert (found[5, 2] == 0).all()
    close(found[1, 1], v(group.final_obs[0, 1]), 1e-6)
    close(found[5, 1], v(group.final_obs[1, 1]), 1e-6)
    close(found[1, 2], group.value[2, 2], 1e-6)
    close(found[5, 0], v(group.obs[6, 0]), 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_threads_do_not_change_the_bits(name: str) -> None:
    env = environment(**SPACES)
    n_envs = ROWS // 2 + 9
    states, settings = [], {"epochs": 1, "minibatches": 2} if name == "ppo" else {}
    for threads in (1, 2):
        agent = make(name, env, threads, n_envs=n_envs, normalize_obs=True, **settings)
        trajectory = rollout(env, 6, n_envs)
        for progress in (0.0, 0.5):
            agent.act(trajectory, 1)
            agent.update(trajectory, progress)
        states.append(agent.state() | {f"out/{k}": g.policy_output for k, g in trajectory.groups.items()})
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_agent_goes_on_with_the_same_bits(name: str) -> None:
    env = environment(**SPACES)
    trajectory = rollout(env)
    first = make(name, env, **EVERYTHING)
    first.update(trajectory, 0.1)
    saved = {key: tensor.clone() for key, tensor in first.state().items()}
    second = make(name, env, **EVERYTHING)
    restore(second.state(), saved)
    first.update(trajectory, 0.2)
    second.update(trajectory, 0.2)
    assert all(torch.equal(tensor, second.state()[key]) for key, tensor in first.state().items())
    assert any(not torch.equal(tensor, first.state()[key]) for key, tensor in saved.items())


def test_a_checkpoint_of_another_agent_is_refused() -> None:
    env = environment(one=SPACES["one"])
    agent = make("a2c", env)
    with pytest.raises(UserError, match="other settings"):
        restore(agent.state(), make("a2c", env, normalize_obs=True).state())
    with pytest.raises(UserError, match="another object"):
        restore(agent.state(), make("a2c", environment(one=SPACES["many"])).state())


@pytest.mark.parametrize("minibatches", [1, 4, 7])
def test_every_row_is_in_one_minibatch_of_an_epoch(minibatches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment(one=SPACES["one"])
    seen: list[torch.Tensor] = []
    agent = make("ppo", env, epochs=2, minibatches=minibatches)
    (learner,) = agent.learners
    original = learner.gradient

    def spy(batch: Any, advantage: torch.Tensor, order: torch.Tensor, moments: Any) -> Any:
        seen.append(order)
        return original(batch, advantage, order, moments)

    monkeypatch.setattr(learner, "gradient", spy)
    agent.update(rollout(env, 6, 5), 0.0)
    assert len(seen) == 2 * minibatches
    epochs = [torch.cat(seen[:minibatches]), torch.cat(seen[minibatches:])]
    assert all(sorted(epoch.tolist()) == list(range(60)) for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist()
    agent.update(rollout(env, 6, 5), 0.0)
    assert torch.cat(seen[2 * minibatches : 3 * minibatches]).tolist() not in [epoch.tolist() for epoch in epochs]


def test_too_many_minibatches_are_refused() -> None:
    env = environment(one=SPACES["one"])
    with pytest.raises(UserError, match=r"agent\.minibatches=61"):
        make("ppo", env, minibatches=61).update(rollout(env, 6, 5), 0.0)


def test_first_minibatch_has_ratio_one_also_with_normalised_observations() -> None:
    """The statistics that the policy acted by are those that it is trained by, from the second rollout on; for the first there are none."""
    env = environment(one=SPACES["one"])
    agent, trajectory = make("ppo", env, epochs=1, minibatches=1, normalize_obs=True), rollout(env)
    for number in range(3):
        group = trajectory.groups["one"]
        for t in range(6):
            agent.act(trajectory, t)
            assert group.mask is not None
            group.log_prob[t] = evaluate(SPACES["one"], group.policy_output, group.mask[t], group.action[t])[0]
        metrics = agent.update(trajectory, 0.0)
        assert metrics["loss/approx_kl"].abs() < (1e-6 if number else 1e-4)
        assert metrics["loss/clip_fraction"] == 0


def test_statistics_take_in_each_rollout_once() -> None:
    env = environment(one=SPACES["one"])
    agent, trajectory = make("ppo", env, normalize_obs=True), rollout(env)
    normalizer, obs = agent.learners[0].policy.normalizer, trajectory.groups["one"].obs
    agent.update(trajectory, 0.0)
    close(normalizer.statistics.mean, obs[:-1].double().mean((0, 1, 2)), 1e-7)
    close(normalizer.shift, normalizer.statistics.mean.float())
    assert normalizer.statistics.count == 6 * 5 * 2


@pytest.mark.parametrize("name", NAMES)
def test_the_first_update_normalises_by_the_first_rollout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a loaded agent goes on; an agent that was saved before its first update still has it before itself."""
    env = environment(one=SPACES["one"])
    agent, trajectory = make(name, env, normalize_obs=True), rollout(env)
    obs = trajectory.groups["one"].obs
    obs.mul_(1e-9).add_(1e-8)
    untrained = {key: tensor.clone() for key, tensor in agent.state().items()}
    shifts = []

    def spy(learner: Any, batch: Any) -> dict[str, torch.Tensor]:
        shifts.append(learner.policy.normalizer.shift.clone())
        return {}

    monkeypatch.setattr(agent, "learn_group", spy)
    agent.update(trajectory, 0.0)
    close(shifts[0], obs[:-1].mean((0, 1, 2)), 1e-15)
    assert not agent.learners[0].policy.normalizer.clipped_share(obs)
    for state, normalizes in ((agent.state(), True), (untrained, False)):
        other = make(name, env, normalize_obs=True)
        restore(other.state(), {key: tensor.clone() for key, tensor in state.items()})
        shift = other.learners[0].policy.normalizer.shift.clone()
        monkeypatch.setattr(other, "learn_group", spy)
        other.update(trajectory, 0.0)
        assert torch.equal(shifts[-1], shift if normalizes else shifts[0])


def test_diagnostics_of_several_groups() -> None:
    env = environment(**SPACES)
    agent, trajectory = make("a2c", env, normalize_obs=True), rollout(env)
    trajectory.groups["many"].obs[:-1, :, :, 0] = 11.0
    found = agent.diagnostics(trajectory)
    assert set(found) == {f"obs/{group}/{name}_share" for group in SPACES for name in ("clipped", "constant")}
    assert found["obs/many/clipped_share"].item() == pytest.approx(1 / 3)
    assert found["obs/one/clipped_share"] == 0
    assert make("a2c", env).diagnostics(trajectory) == {}


def test_target_kl_stops_the_update() -> None:
    env = environment(one=SPACES["one"])
    agent, trajectory = make("ppo", env, target_kl=1e-9), rollout(env)
    before = {key: tensor.clone() for key, tensor in agent.state().items() if key != "updates"}
    metrics = agent.update(trajectory, 0.0)
    assert all(torch.equal(before[key], agent.state()[key]) for key in before)
    assert all(value.isfinite() for value in metrics.values())
    free, wide = make("ppo", env), make("ppo", env, target_kl=1e9)
    free.update(trajectory, 0.0)
    wide.update(trajectory, 0.0)
    assert torch.equal(free.learners[0].policy.parameters, wide.learners[0].policy.parameters)


def reference_terms(space: Space, learner: Any, trajectory: Trajectory) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probability, entropy and value of a whole rollout, [T, N, A], by torch's own distributions."""
    group = trajectory.groups[learner.name]
    output, value = learner.policy(group.obs[:-1].flatten(0, 2))
    output, value = output.view(*group.reward.shape, -1), value.view_as(group.reward)
    if group.mask is None:
        mean, log_std = output.chunk(2, -1)
        normal = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
        return normal.log_prob(group.action), normal.entropy(), value
    log_p, entropy = [], []
    choices = zip(output.split(space.nvec, -1), group.mask[:-1].split(space.nvec, -1), group.action.unbind(-1), strict=True)  # type: ignore[union-attr]
    for logits, mask, action in choices:
        probability = logits.exp() * mask / (logits.exp() * mask).sum(-1, keepdim=True)
        log_p.append(torch.distributions.Categorical(probability).log_prob(action))
        entropy.append(-(probability * torch.where(mask, probability, 1.0).log()).sum(-1))
    return sum(log_p), sum(entropy), value  # type: ignore[return-value]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", [MultiDiscrete((3,)), MultiDiscrete((2, 3)), Box(2)], ids=str)
def test_the_gradient_of_an_update_is_that_of_the_loss_written_out(name: str, space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment(one=space)
    settings: dict[str, Any] = {"epochs": 1, "minibatches": 1, "clip_value": 0.3} if name == "ppo" else {}
    agent, trajectory = make(name, env, entropy_coef=0.1, network=NetworkConfig(hidden=[16], log_std_init=0.2), **settings), rollout(env)
    learner, group = agent.learners[0], trajectory.groups["one"]
    batch = learner.batch(trajectory)
    advantage, returns = batch.advantage.view_as(group.reward), batch.returns.view_as(group.reward)
    advantage = (advantage - advantage.mean()) / advantage.std()
    log_p, entropy, value = reference_terms(space, learner, trajectory)
    if name == "a2c":
        loss = (-log_p * advantage + 0.5 * (value - returns) ** 2 - 0.1 * entropy).mean()
    else:
        ratio = (log_p - group.log_prob).exp()
        near = torch.minimum(torch.maximum(value, group.value - 0.3), group.value + 0.3)
        error = torch.maximum((value - returns) ** 2, (near - returns) ** 2)
        gain = torch.minimum(ratio * advantage, ratio.clip(0.8, 1.2) * advantage)
        loss = (-gain + 0.5 * 0.5 * error - 0.1 * entropy).mean()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, learner.policy.layer_parameters)])
    taken: list[torch.Tensor] = []
    original = learner.gradient

    def spy(*given: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        gradient, means = original(*given, **named)
        taken.append(gradient.clone())
        return gradient, means

    monkeypatch.setattr(learner, "gradient", spy)
    agent.update(trajectory, 0.0)
    close(taken[0], expected, 1e-5)
    assert expected.count_nonzero() > 0.9 * len(expected)


def test_schedules_are_linear() -> None:
    env = environment(one=SPACES["one"])
    agent = make("a2c", env, learning_rate=1e-2, learning_rate_end=0.0, entropy_coef=0.3, entropy_coef_end=0.1)
    for progress, rate, coef in ((0.0, 1e-2, 0.3), (0.5, 5e-3, 0.2), (1.0, 0.0, 0.1), (1.2, 0.0, 0.1)):
        agent.schedule(progress)
        assert agent.learners[0].learning_rate.item() == pytest.approx(rate)
        assert agent.learners[0].entropy_coef.item() == pytest.approx(coef)


def test_groups_have_their_own_settings() -> None:
    env = environment(**SPACES)
    agent = make("a2c", env, groups={"real": {"network": {"hidden": [8]}}})
    sizes = [learner.policy.parameters.numel() for learner in agent.learners]
    assert sizes[2] == (3 * 8 + 8) + (8 * 3 + 3) + 2


def test_the_same_seed_means_the_same_parameters() -> None:
    env = environment(**SPACES)
    torch.manual_seed(1)
    first = make("ppo", env).state()
    torch.manual_seed(2)
    assert all(torch.equal(tensor, first[key]) for key, tensor in make("ppo", env).state().items())
    other = build("ppo", env, seed=4).state()
    assert not torch.equal(other["one/parameters"], first["one/parameters"])


def test_permutations_are_fair_and_repeatable() -> None:
    draws = torch.stack([permutation(5, 7, torch.tensor(i)) for i in range(4000)])
    counts = torch.nn.functional.one_hot(draws, 5).sum(0)
    assert (counts.sum(0) == 4000).all()
    assert ((counts - 800.0) ** 2 / 800).sum() < 45  # chi-square with 16 degrees of freedom, p = 1e-4
    assert torch.equal(draws[17], permutation(5, 7, torch.tensor(17)))


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_learns_which_action_pays(name: str) -> None:
    """A bandit, in place of an engine: action 1 pays when the first observation is positive, action 0 when it is not."""
    env = environment(one=SPACES["one"])
    agent, trajectory = make(name, env, n_envs=64), rollout(env, 4, 64)
    group, random = trajectory.groups["one"], torch.Generator().manual_seed(0)
    trajectory.terminated.fill_(True)
    trajectory.truncated.zero_()
    assert group.mask is not None
    group.mask.fill_(True)
    for update in range(60):
        group.obs.normal_(generator=random)
        for t in range(4):
            agent.act(trajectory, t)
            action = torch.multinomial(group.policy_output.softmax(-1).view(-1, 3), 1, generator=random)
            group.action[t] = action.view(64, 2, 1)
            group.log_prob[t] = evaluate(SPACES["one"], group.policy_output, None, group.action[t])[0]
        group.reward.copy_(group.action.squeeze(-1) == (group.obs[:-1, ..., 0] > 0))
        agent.update(trajectory, update / 60)
    assert group.reward.mean() > 0.9
