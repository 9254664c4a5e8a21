"""DQN, DDPG, TD3 and SAC as agents: what they learn is known exactly, runs repeat bit for bit, and what cannot work is told in one line."""

from concurrent.futures import ThreadPoolExecutor
from itertools import chain, product
from typing import Any

import pytest
import torch

from tests.agents import build
from tests.environments.probes import PROBES
from tests.learning.helpers import CPU, Golden, environment, rollout
from tests.learning.test_processes import communicators
from tests.simulation.rollouts import make
from warprun.config.checks import check_requirements
from warprun.config.compose import compose
from warprun.environment import Box, Discrete, Environment, Group, Phase
from warprun.errors import UserError
from warprun.learning.descent import Due
from warprun.learning.interfaces import Metrics
from warprun.learning.replay import Transitions
from warprun.learning.settings.networks import LayersConfig
from warprun.learning.settings.off_policy import ReplayConfig
from warprun.simulation.exploration import Exploration
from warprun.simulation.trajectory import allocate
from warprun.spec import Field, GroupSpec, Spec
from warprun.state import restore

NAMES = {"dqn": Discrete(3), "ddpg": Box(2), "td3": Box(2), "sac": Box(2)}


def single(name: str, features: int = 3, fields: tuple[Field, ...] = ()) -> Environment:
    """Return an environment of one actor, for an agent called `name`, that nobody steps."""
    base = environment(one=NAMES[name]).groups[0]
    group = Group("one", 1, base.state, Box(features, fields=fields), NAMES[name], base.reset, base.observe)
    return Environment((group,), (Phase("one", base.reset),), time_limit=4)


def agent_for(name: str, env: Environment, **settings: Any) -> Any:
    return build(name, env, **{"learning_starts": 0, "batch_size": 32, "replay": ReplayConfig(1000), **settings})


def every_transition(probability: torch.Tensor, each: int) -> torch.Tensor:
    """Return rows of (state, action, next state): `each` of every pair, with next states in proportion to `probability` [s, a, s']."""
    rows = []
    for state, action in product(range(probability.shape[0]), range(probability.shape[1])):
        ends = (probability[state, action].cumsum(0) * each).round().long()
        counts = torch.diff(ends, prepend=torch.zeros(1, dtype=torch.int64))
        rows += [(state, action, following) for following, count in enumerate(counts.tolist()) for _ in range(count)]
    return torch.tensor(rows)


@pytest.mark.by_default(1)
@pytest.mark.parametrize(("double", "fused"), [(False, True), (True, True), (True, False)])
def test_tabular_dqn_reaches_the_optimal_values(double: bool, fused: bool, golden: Golden) -> None:
    """One-hot states, no end: the values are those of the exact solution, to 1 % of their range.

    The buffer holds every transition as often as its probability says, so nothing is left to luck but the batches. Their noise goes only
    with the learning rate, for Adam's steps are as long as its rate however small the gradient: from 3e-3 on values were off by 4 %, from
    3e-4 on by 0.5 %. 100 copies of the target leave 0.9^100 of the first error. Rewards are a tenth of those of the golden numbers: where
    errors are above 1 the Huber loss finds something between mean and median.
    """
    g = golden("mdp")
    best = g["Q_star"] / 10
    state, action, following = every_transition(g["P"], 1000).T
    settings = {
        "double": double,
        "gamma": float(g["gamma"]),
        "learning_rate": 3e-4,
        "learning_rate_end": 1e-6,
        "target_update_interval": 50,
    }
    env, count = single("dqn", features=6), len(state)
    more = {"batch_size": 256, "utd_ratio": 50 / count, "replay": ReplayConfig(count), "network": LayersConfig(hidden=[48])}
    agent = agent_for("dqn", env, n_envs=count, fused=fused, **settings, **more)
    taken, one_hot = allocate(env.spec, 1, count, CPU), torch.eye(6)
    group = taken.groups["one"]
    group.obs[0, :, 0], group.obs[1, :, 0] = one_hot[state], one_hot[following]
    group.action[0, :, 0, 0] = action.int()
    group.reward[0, :, 0] = g["R"][state, action].float() / 10
    for update in range(100):
        agent.update(taken, update / 100)
    with torch.no_grad():
        found = agent.learners[0].policy(one_hot)
    assert agent.learners[0].updates == 5000
    assert (found - best).abs().max() < 0.01 * (best.max() - best.min())
    assert found.argmax(-1).tolist() == g["greedy"].tolist()


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_probe_that_only_the_time_limit_ends(name: str) -> None:
    """1 / (1 - gamma): truncation bootstraps. Real actions: the good one is found, too."""
    if name == "dqn":
        env, gamma = PROBES["6 no end but the time limit"], 0.8
    else:
        env, gamma = PROBES["5 a real action that depends"], 0.8
    settings = {
        "gamma": gamma,
        "utd_ratio": 1.0,
        "target_update_interval": 1,
        "tau": 0.05,
        "learning_rate": 3e-3,
        "learning_rate_end": 1e-5,
        "n_step": 2,
    }
    if name != "dqn":
        settings |= {"actor_learning_rate": 3e-3, "learning_starts": 200}
    if name == "sac":
        settings |= {"temperature": 0.1, "target_entropy": -2.0}
    elif name != "dqn":
        settings |= {"noise_std": 0.5}
    agent = agent_for(name, env, n_envs=8, fused=True, **settings, network=LayersConfig(hidden=[32], activation="tanh"))
    engine = make(env, f"probe_{name}", n_envs=8, horizon=1, exploration=agent.exploration, networks=agent.networks())
    for n in range(400):
        agent.update(engine.collect(agent.act), n / 400)
    learner = agent.learners[0]
    with torch.no_grad():
        if name == "dqn":
            assert learner.policy(torch.zeros(1, 1)).item() == pytest.approx(1 / (1 - gamma), rel=0.05)
        else:
            found = learner.policy(torch.tensor([[1.0], [-1.0]]))[:, 0]
            found = (found.tanh() if name == "sac" else found).tolist()
            assert found == pytest.approx([0.5, -0.5], abs=0.12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prioritized", [False, True])
def test_a_loaded_agent_goes_on_with_the_same_bits(name: str, prioritized: bool) -> None:
    env = single(name)
    settings = {"replay": ReplayConfig(100, prioritized=prioritized), "normalize_obs": True, "utd_ratio": 0.3, "n_step": 2}
    first, second = agent_for(name, env, **settings), agent_for(name, env, **settings)
    first.update(rollout(env, 6, 5, seed=1), 0.1)
    saved = {key: tensor.clone() for key, tensor in first.state().items()}
    restore(second.state(), saved)
    for agent in (first, second):
        agent.update(rollout(env, 6, 5, seed=2), 0.2)
    assert first.learners[0].updates > 9
    assert all(torch.equal(tensor, second.state()[key]) for key, tensor in first.state().items())
    assert any(not torch.equal(tensor, first.state()[key]) for key, tensor in saved.items())
    with pytest.raises(UserError, match="other settings"):
        restore(agent_for(name, env).state(), saved)


@pytest.mark.parametrize(("n_envs", "horizon"), [(1, 1), (5, 1), (64, 3)])
@pytest.mark.parametrize("ratio", [0.01, 0.5, 2.0])
def test_gradient_steps_are_counted_per_environment_step(n_envs: int, horizon: int, ratio: float) -> None:
    env = single("dqn")
    agent = agent_for("dqn", env, n_envs=n_envs, learning_starts=100, utd_ratio=ratio, batch_size=4)
    taken = rollout(env, horizon, n_envs) if horizon > 3 else allocate(env.spec, horizon, n_envs, CPU)
    while agent.env_steps < 250:
        agent.update(taken, 0.0)
    assert agent.learners[0].updates == int((agent.env_steps - 100) * ratio)


def test_actions_are_random_until_the_warm_up_is_over_and_epsilon_falls() -> None:
    env = single("dqn")
    epsilon = {"epsilon_start": 0.8, "epsilon_end": 0.2, "exploration_fraction": 0.5}
    agent = agent_for("dqn", env, n_envs=60, learning_starts=100, batch_size=4, **epsilon)
    taken, seen = allocate(env.spec, 1, 60, CPU), []
    for progress in (0.0, 0.25, 0.5, 0.9):
        agent.update(taken, progress)
        seen.append(float(agent.exploration.numbers["one"][0]))
    assert seen == pytest.approx([1.0, 0.5, 0.2, 0.2])
    noisy = agent_for("ddpg", single("ddpg"), n_envs=4, noise="ou", noise_std=0.3, noise_theta=0.1, batch_size=4)
    noisy.update(allocate(single("ddpg").spec, 1, 4, CPU), 0.0)
    assert noisy.exploration.numbers["one"].tolist() == pytest.approx([0.0, 0.3, 0.1])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_logged_beside_losses(name: str) -> None:
    env = single(name)
    settings: dict[str, Any] = {
        "dqn": {"epsilon_start": 0.8, "epsilon_end": 0.2, "exploration_fraction": 1.0},
        "sac": {"temperature": 0.4, "temperature_learning_rate": None},
    }.get(name, {"noise_std": 0.3})
    more = {"learning_starts": 40, "batch_size": 4, "learning_rate": 1e-3, "learning_rate_end": 5e-4, "replay": ReplayConfig(100)}
    agent = agent_for(name, env, **settings, **more, n_envs=30, utd_ratio=0.1, normalize_obs=True)
    taken = allocate(env.spec, 1, 30, CPU)
    shown = []
    for progress in (0.0, 0.5, 0.9, 1.0):
        agent.update(taken, progress)
        shown.append({key: float(value) for key, value in agent.diagnostics(taken).items()})
    of_noise, expected = {
        "dqn": ("explore/epsilon", [1.0, 0.5, 0.26, 0.2]),
        "sac": ("explore/temperature", [0.4] * 4),
    }.get(name, ("explore/noise_std", [0.0, 0.3, 0.3, 0.3]))
    assert [s[of_noise] for s in shown] == pytest.approx(expected)
    assert [s["loss/learning_rate"] for s in shown] == pytest.approx([1e-3, 7.5e-4, 5.5e-4, 5e-4])
    assert [s["loss/gradient_steps"] for s in shown] == [0, 2, 5, 8]
    assert [s["replay/size"] for s in shown] == [30, 60, 90, 90]
    assert {s["obs/clipped_share"] for s in shown} == {0.0}


@pytest.mark.parametrize("fused", [False, True])
def test_errors_of_two_critics_do_not_cancel_in_priorities(fused: bool) -> None:
    """One critic too high by 1, the other too low by 1: the mean of the errors would be 0. Fujimoto et al. 2020 take the larger one."""
    env = single("td3")
    settings = {"replay": ReplayConfig(1000, prioritized=True), "batch_size": 8, "learning_rate": 1e-12, "gamma": 0.0}
    agent = agent_for("td3", env, n_envs=30, fused=fused, **settings)
    learner = agent.learners[0]
    critics = learner.critics
    critics.parameters.zero_()
    for critic, value in zip(critics.network.each, (1.0, -1.5), strict=True):
        critic[-1].bias.data.fill_(value)
    taken = allocate(env.spec, 1, 30, CPU)
    learner.add(taken)
    error, _ = learner.gradient_step(learner.replay.draw(learner.number.tensor), Due(target=False, actor=True))
    assert error.tolist() == pytest.approx([1.5] * 8, abs=1e-5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_learn_from_the_transitions_of_both(name: str, fused: bool) -> None:
    """Different rollouts, and the same networks, statistics of observations and metrics after every update."""
    env = single(name)
    settings = {"normalize_obs": True, "utd_ratio": 0.3, "max_grad_norm": 0.5, "fused": fused}
    agents = [agent_for(name, env, communicator=communicator, **settings) for communicator in communicators()]
    alone = agent_for(name, env, **settings)
    rollouts = [[rollout(env, 6, 5, seed=2 * n + rank) for n in range(3)] for rank in (0, 1)]
    for n, taken in enumerate(rollouts[0]):  # before the threads, which cannot compile kernels at the same time
        alone.update(taken, n / 3)

    def train(rank: int) -> Metrics:
        for n, taken in enumerate(rollouts[rank]):
            metrics = agents[rank].update(taken, n / 3)
        return {key: float(value) for key, value in metrics.items()}

    with ThreadPoolExecutor(2) as pool:
        metrics = list(pool.map(train, (0, 1)))
    assert agents[0].learners[0].updates == 54  # 0.3 for each of the 180 steps of both processes
    assert metrics[0] == metrics[1]
    first, second = (agent.state() for agent in agents)
    assert all(torch.equal(tensor, second[key]) for key, tensor in first.items() if "replay" not in key)
    assert not torch.equal(first["one/replay/obs"], second["one/replay/obs"])
    rows = torch.cat([taken.groups["one"].obs[:-1].flatten(0, 2) for taken in chain(*rollouts)])
    expected = rows.double().var(0, correction=0)
    torch.testing.assert_close(first["one/obs/mean"], rows.double().mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(first["one/obs/variance"], expected, rtol=1e-5, atol=1e-6)
    assert int(first["one/obs/count"]) == len(rows)
    assert any(not torch.equal(tensor, first[key]) for key, tensor in alone.state().items() if key.endswith("parameters"))


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_step_of_two_processes_is_that_of_the_joint_batch(fused: bool) -> None:
    """The mean gradient of two batches is the gradient of both together; so are the norm, the loss and the mean value."""
    env = single("dqn")
    settings = {"max_grad_norm": 0.01, "replay": ReplayConfig(64), "fused": fused}
    agents = [agent_for("dqn", env, batch_size=32, communicator=communicator, **settings) for communicator in communicators()]
    joint = agent_for("dqn", env, batch_size=64, **settings)
    source = agent_for("dqn", env, batch_size=64, n_envs=8, replay=ReplayConfig(64)).learners[0]
    source.add(rollout(env, 8, 8, seed=5))
    batch = source.replay.draw(torch.tensor(0))
    halves = [Transitions(*(part[begin : begin + 32].clone() for part in batch)) for begin in (0, 32)]
    due = Due(target=True)
    error, metrics = joint.learners[0].gradient_step(batch, due)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda rank: agents[rank].learners[0].gradient_step(halves[rank], due), (0, 1)))
    torch.testing.assert_close(torch.cat([found[0][0], found[1][0]]), error, rtol=1e-5, atol=1e-6)
    for _, own in found:
        assert {key: float(value) for key, value in own.items()} == pytest.approx({k: float(v) for k, v in metrics.items()}, rel=1e-4)
    for agent in agents:
        torch.testing.assert_close(agent.state()["one/values/parameters"], joint.state()["one/values/parameters"], rtol=1e-4, atol=1e-5)


def explore(
    space: Any, numbers: tuple[float, float, float], output: list[float], steps: int, time_limit: int | None = None
) -> torch.Tensor:
    """Return the actions [steps, 2000, C] that come of a constant policy output."""
    probe = "6 no end but the time limit" if isinstance(space, Discrete) else "4 a real action"
    env, exploration = PROBES[probe], Exploration("explored", {"agent": torch.tensor(numbers)})
    group = Group("agent", 1, env.groups[0].state, Box(1), space, env.groups[0].reset, env.groups[0].observe)
    phases = PROBES["6 no end but the time limit"].phases
    name = f"explore_{space.components}"
    engine = make(Environment((group,), phases, time_limit=time_limit), name, n_envs=2000, horizon=steps, exploration=exploration)
    engine.trajectory.groups["agent"].policy_output[:, 0, : len(output)] = torch.tensor(output)
    return engine.collect(lambda trajectory, row: None).groups["agent"].action[:, :, 0]


def test_epsilon_greedy_takes_every_action_as_often_as_it_should() -> None:
    counts = torch.bincount(explore(Discrete(4), (0.4, 0.0, 0.0), [0.0, 2.0, 1.0, -1.0], 20).flatten(), minlength=4) / 40_000
    assert counts.tolist() == pytest.approx([0.1, 0.7, 0.1, 0.1], abs=0.01)


@pytest.mark.long
def test_white_noise_is_normal_and_stays_within_bounds() -> None:
    action = explore(Box(1, -1.0, 1.0), (0.0, 0.2, 1.0), [0.1], 20)[..., 0]
    assert action.mean().item() == pytest.approx(0.1, abs=0.01)
    assert action.std().item() == pytest.approx(0.2, rel=0.03)
    assert ((action[1:] - 0.1) * (action[:-1] - 0.1)).mean().abs() < 0.002
    assert explore(Box(1, -1.0, 1.0), (0.0, 5.0, 1.0), [0.1], 20).abs().max() == 1.0


@pytest.mark.long
def test_ou_noise_drifts_and_begins_anew_with_the_episode() -> None:
    noise = explore(Box(1, -1.0, 1.0), (0.0, 0.05, 0.1), [0.0], 24, time_limit=8)[..., 0]
    spread = noise.std(1)
    expected = [0.05 * sum(0.9 ** (2 * k) for k in range(t % 8 + 1)) ** 0.5 for t in range(24)]
    assert spread.tolist() == pytest.approx(expected, rel=0.1)
    together = (noise[4] * noise[5]).mean() / noise[4].square().mean()
    assert together.item() == pytest.approx(0.9, abs=0.05)
    assert (noise[7] * noise[8]).mean().abs() < 0.001


def test_warm_up_actions_are_uniform() -> None:
    action = explore(Box(1, -1.0, 1.0), (1.0, 0.2, 1.0), [0.9], 20)[..., 0]
    assert torch.histc(action, 4, -1.0, 1.0).div(40_000).tolist() == pytest.approx([0.25] * 4, abs=0.01)


WRONG = {
    "agent=dqn env=pendulum": "agent=dqn cannot choose the Box actions of group 'agent'; agents that can: a2c, ppo, ddpg, td3, sac",
    "agent=td3 env=cartpole": "agent=td3 cannot choose the Discrete actions of group 'agent'; agents that can: a2c, ppo, dqn",
    "agent=dqn agent.batch_size=200 agent.replay.capacity=100": "agent.batch_size=200: the buffer holds only agent.replay.capacity=100",
    "agent=dqn agent.learning_starts=5000 total_steps=5000": "agent.learning_starts=5000: the run has only total_steps=5000",
    "agent=dqn agent.replay.alpha=1.5": "agent.replay.alpha=1.5: it must lie between 0 and 1",
    "agent=td3 env=pendulum agent.noise=pink": "agent.noise=pink: unknown; there are: gaussian, ou",
    "agent=sac env=pendulum agent.temperature=0": "agent.temperature=0.0: it must be above 0 and finite",
    "agent=sac env=pendulum agent.target_entropy=nan": "agent.target_entropy=nan: it must be finite",
    "agent=dqn agent.quantiles=0": "agent.quantiles=0: it must lie between 1 and 1000",
    "agent=dqn agent.value_rescaling=-1": "agent.value_rescaling=-1.0: it must be 0 or more",
    "agent=dqn agent.value_rescaling=1e-3 agent.quantiles=9": "agent.value_rescaling=0.001 with agent.quantiles: the mean of rescaled",
    "agent=dqn agent.quantiles=9 agent.network.module=torch.nn:Flatten": "agent.quantiles=9 splits the last layer in two",
    "agent=dqn agent.utd_ratio=0": "agent.utd_ratio=0.0: it must be above 0",
    "agent=td3 env=pendulum agent.epsilon=0.1": "unknown key 'agent.epsilon'",
    "agent=dqn n_envs=300 agent.replay.capacity=280": "agent.replay.capacity=280: a single step of n_envs=300",
}


@pytest.mark.parametrize("overrides", WRONG)
def test_what_cannot_work_is_told_in_one_line(overrides: str) -> None:
    with pytest.raises(UserError) as failure:
        compose(overrides.split())
    assert str(failure.value).startswith(WRONG[overrides])
    assert "\n" not in str(failure.value)


def test_dqn_refuses_masks() -> None:
    with pytest.raises(UserError, match="does not support action masks"):
        check_requirements("dqn", environment(one=Discrete(3)).spec)


@pytest.mark.parametrize(("agent", "able"), [("dqn", "a2c, ppo"), ("sac", "a2c, ppo")])
def test_the_agents_that_can_are_those_that_can_for_all_groups(agent: str, able: str) -> None:
    groups = (GroupSpec("farmers", 6, Box(4), Discrete(4)), GroupSpec("mayor", 1, Box(4), Box(1, 0.0, 1.0)))
    with pytest.raises(UserError, match=f"agents that can: {able}$"):
        check_requirements(agent, Spec(groups, 60))
