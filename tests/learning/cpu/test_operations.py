"""The operations of kernels on CPU against those of torch: acting, advantages, statistics, steps."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch

from tests.agents import build
from tests.learning.helpers import CPU, SPACES, close, environment, rollout
from tests.learning.test_agents import make
from warprun.kernels.simd import COLUMNS
from warprun.learning import operations, optimizers
from warprun.learning.batch import Spread, explained_variance
from warprun.learning.kernels.cpu import updates as fused_updates
from warprun.learning.kernels.cpu.loops.optimizer import PIECE
from warprun.learning.kernels.cpu.minibatches import CpuMinibatches
from warprun.learning.kernels.cpu.optimizer import SPLIT_FROM, CpuAdam
from warprun.learning.kernels.cpu.statistics import CpuObservations, CpuRewards
from warprun.learning.normalization import ObservationNormalizer, RewardNormalizer
from warprun.learning.settings.agent import OptimizerConfig
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.learning.settings.off_policy import ReplayConfig
from warprun.learning.slices import split
from warprun.simulation import trajectory
from warprun.simulation.trajectory import Trajectory
from warprun.spec import Box, Discrete, GroupSpec, MultiDiscrete, Space, Spec

ACTIONS = {"discrete": Discrete(5), "choices": MultiDiscrete((3, 2)), "box": Box(2, -1.0, 1.0)}
ALGORITHMS = [("a2c", "discrete"), ("ppo", "choices"), ("ppo", "box"), ("dqn", "discrete"), ("td3", "box"), ("sac", "box")]
NETWORKS = {
    "on-policy": [NetworkConfig(hidden=[32, 16]), NetworkConfig(hidden=[24], activation="relu", shared=False)],
    "off-policy": [LayersConfig(hidden=[32, 16], activation="tanh"), LayersConfig(hidden=[24], activation="relu")],
}


@pytest.mark.parametrize("network", [0, 1])
@pytest.mark.parametrize(("algorithm", "space"), ALGORITHMS)
def test_kernels_act_as_torch_does(algorithm: str, space: str, network: int) -> None:
    spec = Spec((GroupSpec("agent", 3, Box(7), ACTIONS[space]), GroupSpec("other", 1, Box(2), ACTIONS[space])))
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
            rollout = trajectory.allocate(spec, 2, n_envs, CPU)
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


@pytest.mark.parametrize("n_envs", [1, 5, COLUMNS + 3, 5 * COLUMNS])
@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize(("threads", "advantage"), [(1, "gae"), (2, "gae"), (1, "nstep"), (2, "vtrace"), (1, "exarl_vtrace")])
def test_rows_of_a_rollout_are_those_of_torch(n_envs: int, normalize_obs: bool, threads: int, advantage: str) -> None:
    """Several actors, and more truncations in an environment than one; all ends are drawn at random."""
    env = environment(**SPACES)
    fused = make("a2c", env, threads, n_envs=n_envs, fused=True, normalize_obs=normalize_obs, advantage=advantage)
    plain = make("a2c", env, n_envs=n_envs, normalize_obs=normalize_obs, advantage=advantage)
    trajectory = rollout(env, horizon=6, n_envs=n_envs)
    trajectory.terminated.copy_(torch.rand(trajectory.terminated.shape) < 0.2)
    # At most one truncation in every three steps, as the rollout has room for.
    trajectory.truncated.zero_()
    trajectory.truncated[1::3] = torch.rand(trajectory.truncated[1::3].shape) < 0.5
    trajectory.truncated.logical_and_(~trajectory.terminated)
    for ours, theirs in zip(fused.learners, plain.learners, strict=True):
        found, expected = ours.batch(trajectory), theirs.batch(trajectory)
        close(found.advantage, expected.advantage, 1e-6)
        close(found.returns, expected.returns, 1e-6)
        spread = torch.stack(found.spread[:4]), torch.stack(Spread.of(expected.advantage.double(), expected.returns.double())[:4])
        close(*spread, 1e-6)
        if ours.target.gives_errors:
            assert found.spread.explained is not None
            close(found.spread.explained, explained_variance(Spread(*spread[1])), 1e-6)


def test_ratios_of_vtrace_are_those_of_the_policy_of_every_update() -> None:
    env = environment(one=SPACES["one"])
    (learner,) = make("ppo", env, n_envs=5, fused=True, advantage="vtrace").learners
    taken = rollout(env, horizon=6, n_envs=5)
    for _ in range(3):
        learner.policy.parameters += 0.1
        expected = learner.judge(taken).flatten(1)
        close(learner.batch(taken).log_prob, expected, 1e-6)


ENDS = (..., None)


@pytest.mark.parametrize(("rows", "features"), [(1, 3), (160, 4), (1000, 1), (4097, 17)])
def test_statistics_are_those_of_torch(rows: int, features: int) -> None:
    """The means are far from 0: their squares would drown the variance of plain sums."""
    generator = torch.Generator().manual_seed(rows)
    kernel, reference = ObservationNormalizer(features, CPU), ObservationNormalizer(features, CPU)
    fused = CpuObservations(kernel, 1)
    for scale in (1.0, 3.0):
        obs = 1e4 + scale * torch.randn(rows, features, generator=generator)
        fused(obs)
        reference.statistics.update(obs)
        reference.refresh()
        for name, found in kernel.tensors().items():
            torch.testing.assert_close(
                found, reference.tensors()[name], rtol=1e-6, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
            )


def filled(spec: Spec, n_envs: int, seed: int) -> Trajectory:
    made = trajectory.allocate(spec, 7, n_envs, CPU)
    refill(made, seed)
    return made


def refill(made: Trajectory, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(made.terminated.shape, generator=generator)
    made.terminated.copy_(ends < 0.1)
    made.truncated.copy_((ends > 0.1) & (ends < 0.2))
    for group in made.groups.values():
        group.reward.copy_(5.0 + torch.randn(group.reward.shape, generator=generator))


@pytest.mark.parametrize(("n_envs", "actors"), [(3, 1), (100, 1), (33, 3)])
@pytest.mark.parametrize(("sources", "window"), [(1, None), (2, None), (1, 2)])
def test_rewards_are_those_of_torch(n_envs: int, actors: int, sources: int, window: int | None) -> None:
    spec = Spec((GroupSpec("agent", actors, Box(2), Discrete(2)),), time_limit=None)
    made = filled(spec, n_envs, 1)
    group = made.groups["agent"]
    kernel, reference = (RewardNormalizer(0.9, (n_envs, actors), CPU, sources=sources, window=window) for _ in range(2))
    fused = CpuRewards(kernel, "agent", 1)
    for seed in range(4):
        refill(made, seed)
        made.source.fill_(seed % sources)
        made.continues.fill_(seed != 2)
        found = fused(made)
        expected = reference(group.reward, made.terminated[ENDS], made.truncated[ENDS], made)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(kernel.returns, reference.returns, rtol=1e-6, atol=1e-6)
        for name, tensor in kernel.statistics.tensors().items():
            torch.testing.assert_close(tensor, reference.statistics.tensors()[name], rtol=1e-6, atol=1e-6)
    assert float(kernel.statistics.count) == group.reward.numel() * (window or 4)


@pytest.mark.parametrize("actors", [1, 3])
def test_threads_change_no_bit(actors: int) -> None:
    spec = Spec((GroupSpec("agent", actors, Box(2), Discrete(2)),), time_limit=None)
    found = []
    for threads in (1, 3):
        made = filled(spec, 1000, 5)
        rewards, obs = RewardNormalizer(0.9, (1000, actors), CPU), ObservationNormalizer(2, CPU)
        normalized = CpuRewards(rewards, "agent", threads)(made).clone()
        CpuObservations(obs, threads)(torch.randn(30_000, 2, generator=torch.Generator().manual_seed(3)))
        found.append([normalized, *rewards.tensors().values(), *obs.tensors().values()])
    assert all(torch.equal(one, three) for one, three in zip(*found, strict=True))


@pytest.mark.parametrize("size", [1, 2, 77, 5000])
def test_minibatches_have_the_advantages_and_moments_of_torch(size: int) -> None:
    random = torch.Generator().manual_seed(size)
    advantage = 1000.0 + torch.randn(6000, generator=random)  # a mean that squares in float32 would lose
    learner = build("ppo", environment(one=SPACES["one"]), fused=True).learners[0]
    assert learner.operations.pick is not operations.pick
    for _ in range(2):
        order, parts = torch.randperm(6000, generator=random), split(6000, 6000 // size)
        for part, (picked, (mean, variance)) in zip(parts, learner.pick(advantage, order, parts), strict=True):
            assert torch.equal(picked, advantage[order[part]])
            expected = picked.double()
            close(mean, expected.mean(), 1e-6)
            close(variance, expected.var() if len(picked) > 1 else torch.zeros(()), 1e-5)


def test_means_over_gradient_steps_are_those_of_torch() -> None:
    random = torch.Generator().manual_seed(0)
    kernels = CpuMinibatches(build("ppo", environment(one=SPACES["one"])).learners[0].reference)
    for steps in (1, 40):  # the second time from the beginning
        terms, norms = torch.randn(steps, 5, generator=random), torch.rand(steps, generator=random)
        found, by_torch = None, None
        for number in range(steps):
            found = kernels.average(found, number + 1, terms[number].clone(), norms[number].clone())
            by_torch = operations.average(by_torch, number + 1, terms[number], norms[number])
        for mean in (found, by_torch):
            assert mean is not None
            close(mean, torch.cat((terms.double().mean(0), norms.double().mean()[None])), 1e-6)


@pytest.mark.parametrize("rate", [1e-3, 5e-6, 0.5])
def test_an_adapted_learning_rate_is_that_of_torch(rate: float) -> None:
    given = {"learning_rate": rate, "desired_kl": 0.01}
    kernels, plain = (build("ppo", environment(one=SPACES["one"]), fused=fused, **given).learners[0] for fused in (True, False))
    for kl in [0.1] * 9 + [0.01, 0.019, 0.0051, 0.021, 0.0049] + [0.0] * 30 + [float("nan")]:
        for learner in (kernels, plain):
            learner.operations.adapt(torch.tensor(kl), 0.01)
        assert float(kernels.learning_rate) == float(plain.learning_rate)
        assert float(kernels.rate_factor) == float(plain.rate_factor)
    assert float(kernels.learning_rate) == pytest.approx(max(rate, 1e-2))


@pytest.mark.parametrize("max_norm", [None, 0.5, 1e6])
@pytest.mark.parametrize("size", [1, 15, 4675])
def test_steps_are_those_of_torch(size: int, max_norm: float | None) -> None:
    generator = torch.Generator().manual_seed(size)
    rate = torch.tensor(1e-2, dtype=torch.float64)
    config = OptimizerConfig(eps=1e-5)
    parameters = torch.randn(size, generator=generator)
    truth = parameters.double().requires_grad_()
    adam = CpuAdam(optimizers.Adam(parameters, config), parameters, rate, max_norm)
    theirs = torch.optim.Adam([truth], lr=1e-2, betas=(config.beta1, config.beta2), eps=config.eps)
    for step in range(20):
        gradient = torch.randn(size, generator=generator) * 10.0 ** (step % 3 - 1)
        truth.grad = gradient.double()
        norm = torch.linalg.vector_norm(truth.grad)
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_([truth], max_norm)
        theirs.step()
        adam.step(gradient)
        torch.testing.assert_close(adam.norm.double(), norm, rtol=1e-6, atol=0.0)
        torch.testing.assert_close(parameters.double(), truth.detach(), rtol=1e-6, atol=1e-6)
        rate.fill_(float(rate) * 0.9)
        theirs.param_groups[0]["lr"] = float(rate)


def test_the_target_follows() -> None:
    parameters, target = torch.ones(33), torch.zeros(33)
    adam = CpuAdam(optimizers.Adam(parameters, OptimizerConfig()), parameters, torch.zeros((), dtype=torch.float64), None, target)
    for expected in (0.25, 0.4375):
        adam.step(torch.ones(33), tau=0.25)
        assert torch.equal(parameters, torch.ones(33)) and torch.equal(target, torch.full((33,), expected))


def test_threads_do_not_change_steps() -> None:
    size = SPLIT_FROM * PIECE + 5
    generator = torch.Generator().manual_seed(1)
    first, rate = torch.randn(size, generator=generator), torch.tensor(1e-2, dtype=torch.float64)
    results = []
    for threads in (1, 2, 3):
        generator.manual_seed(2)
        parameters, target = first.clone(), torch.zeros(size)
        adam = CpuAdam(optimizers.Adam(parameters, OptimizerConfig()), parameters, rate, 0.5, target, threads)
        norms = [adam.step(torch.randn(size, generator=generator), tau=0.1).item() for _ in range(3)]
        results.append((norms, parameters, target))
    for norms, parameters, target in results[1:]:
        assert norms == results[0][0]
        assert torch.equal(parameters, results[0][1]) and torch.equal(target, results[0][2])


def test_moments_without_gradient_end_at_zero() -> None:
    """They would become denormal numbers and stay so, with which Intel's processors compute some 40 times as slowly."""
    parameters = torch.zeros(100)
    optimizer = optimizers.Adam(parameters, OptimizerConfig(beta2=0.9))
    adam = CpuAdam(optimizer, parameters, torch.zeros((), dtype=torch.float64), None)
    adam.step(torch.full((100,), 1e-3))
    for _ in range(1000):
        adam.step(torch.zeros(100))
    assert not optimizer.mean.any()
    assert not optimizer.square.any()


def test_kernels_apply_gradients_of_torch() -> None:
    """With networks of torch, such as convolutions, that of a learner is the only kernel of an update."""
    spec = environment(agent=Discrete(3))
    for fused in (True, False):
        agents = [
            build(name, spec, fused=fused, network=kind(activation="elu")) for name, kind in (("a2c", NetworkConfig), ("dqn", LayersConfig))
        ]
        on_policy, off_policy = (agent.learners[0] for agent in agents)
        for step in (on_policy.operations.step, off_policy.values_step.step):
            assert isinstance(step.__self__, CpuAdam) == fused


def test_a_gradient_of_another_length_is_refused() -> None:
    parameters = torch.zeros(5)
    adam = CpuAdam(optimizers.Adam(parameters, OptimizerConfig()), parameters, torch.ones((), dtype=torch.float64), None)
    for length in (4, 6):
        with pytest.raises(ValueError, match=f"a gradient of {length} numbers for 5 parameters"):
            adam.step(torch.ones(length))


def test_gradients_are_not_kept() -> None:
    """An agent of a user may make a new one for every step."""
    parameters = torch.zeros(5)
    adam = CpuAdam(optimizers.Adam(parameters, OptimizerConfig()), parameters, torch.ones((), dtype=torch.float64), None)
    steps = []
    for sign in (1.0, -1.0, 1.0):
        gradient = np.full(5, sign, np.float32)
        steps.append(weakref.ref(gradient))
        before = parameters.clone()
        adam.step(torch.from_numpy(gradient))
        assert (parameters != before).all()
        del gradient
    assert [step() is None for step in steps] == [True, True, False]


# Gradient steps in kernels against the same steps in torch ------------------------------------------------------------

CASES: dict[str, tuple[str, Space, dict[str, Any]]] = {
    "dqn": ("dqn", Discrete(3), {}),
    "plain dqn": ("dqn", Discrete(3), {"double": False, "max_grad_norm": None, "n_step": 3, "normalize_obs": True}),
    "prioritized dqn": ("dqn", Discrete(3), {"replay": ReplayConfig(200, prioritized=True), "target_update_interval": 3, "tau": 0.3}),
    "dueling dqn": ("dqn", Discrete(3), {"dueling": True, "max_grad_norm": None}),
    "rescaled dqn": ("dqn", Discrete(3), {"value_rescaling": 0.01}),
    "quantiles": ("dqn", Discrete(3), {"quantiles": 5, "replay": ReplayConfig(200, prioritized=True)}),
    "dueling quantiles": ("dqn", Discrete(4), {"quantiles": 8, "dueling": True, "double": False}),
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
