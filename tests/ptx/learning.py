"""The learner's kernels on the machine beside float64: gradients, values and advantages, statistics, the optimizer."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tests.agents import build
from tests.learning.cpu.test_gradient import SPACES, exact_gradient, learner_for, rows_for
from tests.learning.cuda.simulated import cuda_kernels
from tests.learning.helpers import environment, rollout
from tests.ptx.machine import Order
from tests.ptx.mistakes import Mistake
from tests.ptx.project import on
from tests.ptx.rolling import APPROXIMATE, ULPS, clear, difference, machine, same_bits, wrong_in
from tests.simulation.rollouts import Arrays
from warprun.environment import Discrete
from warprun.learning.draws import permutation
from warprun.learning.formulas import RESOLUTION, TINY
from warprun.learning.kernels.cuda import gradient as cuda_gradient
from warprun.learning.normalization import RewardNormalizer
from warprun.learning.on_policy import Learner
from warprun.learning.operations import Operations, scan
from warprun.learning.optimizers import Adam, clip_norm
from warprun.learning.settings.networks import NetworkConfig
from warprun.learning.slices import split
from warprun.learning.targets import TARGETS, Discount, Step
from warprun.simulation.trajectory import Trajectory

TOLERANCE = 1e-5
"""Relative to the largest element of a gradient, to 1 + |value| of everything else."""
OF_VALUES = 1e-4
"""The same for what is summed from values of all steps that follow, each of them 1e-5 off on tensor cores."""
NETWORKS = {
    "relu 17-5-9": NetworkConfig(hidden=[17, 5, 9], activation="relu", shared=False),
    # Tiles of fewer than 32 rows, and blocks of 256 threads.
    "tanh 300-130": NetworkConfig(hidden=[300, 130]),
}
Found = tuple[Arrays, Arrays]
"""What kernels have computed, and the same in float64."""
Part = Callable[[], Found]


def numbers(tensors: Iterable[tuple[str, torch.Tensor]]) -> Arrays:
    return {name: tensor.detach().double().numpy().copy() for name, tensor in tensors}


def kernels_of(learner: Learner[Any]) -> Operations:
    """Return the operations that a learner has on a GPU with two multiprocessors: few blocks take several tiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_gradient, "multiprocessors", lambda device: 2)
        return cuda_kernels(learner)


def gradient(algorithm: str, space: str, masked: bool, network: str, count: int) -> Found:
    """Compute the gradient of rows that `order` picks out of twice as many; the others are not finite. Advantages are normalized."""
    learner = learner_for(algorithm, SPACES[space], NETWORKS[network], fused=False)
    rows = rows_for(learner, count, masked)
    exact, terms = exact_gradient(algorithm, learner, rows)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    twice = rows.each(lambda x: torch.cat((x[order], x[order] * (torch.nan if x.is_floating_point() else 0))))
    moments = torch.tensor(2.0), torch.tensor(9.0)
    found, means = kernels_of(learner).gradient(twice, 3.0 * rows.advantage + 2.0, torch.argsort(order), moments)
    scale = np.abs(exact).max()
    kept = numbers({"gradient": found / scale, "terms": means}.items())
    return kept, {"gradient": exact / scale, "terms": np.array(terms)}


def learner_of(network: str, n_envs: int, **settings: Any) -> tuple[Learner[Any], Trajectory]:
    """Return a learner with statistics of a run under way, and a rollout of two actors."""
    env = environment(only=Discrete(3))
    (learner,) = build("ppo", env, n_envs=n_envs, network=NETWORKS[network], **settings).learners
    learner.policy.normalizer.shift.fill_(0.1)
    learner.policy.normalizer.scale.fill_(1.3)
    parameters = learner.policy.parameters
    parameters += 0.2 * torch.randn(parameters.shape, generator=torch.Generator().manual_seed(2))
    learner.schedule(0.0)
    return learner, rollout(env, n_envs=n_envs)


def exact_returns(
    learner: Learner[Any], taken: Trajectory, reward: torch.Tensor, log_ratio: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns in float64."""
    group = taken.groups["only"]
    policy = learner.policy
    names = [name for name, _ in policy.network.named_parameters()]
    double = {name: leaf.detach().double() for name, leaf in zip(names, policy.layer_parameters, strict=False)}

    def values(obs: torch.Tensor) -> torch.Tensor:
        seen = ((obs.double() - policy.normalizer.shift) * policy.normalizer.scale).clamp(-10.0, 10.0)
        flat: torch.Tensor = torch.func.functional_call(policy.network, double, (seen.flatten(0, -2),))[1]
        return flat.view(obs.shape[:-1])

    after = torch.cat((group.value[1:].double(), values(group.obs[-1])[None]))
    final = values(group.final_obs).gather(0, taken.final_slot()[..., None].expand(-1, *group.value.shape[1:]))
    ends = [flag[..., None] for flag in (taken.terminated, taken.truncated)]
    after = torch.where(ends[1], final, after).masked_fill(ends[0], 0.0)
    over = (ends[0] | ends[1]).expand_as(after).clone()
    over[-1] = True
    steps = Step(reward, group.value.double(), after, over, log_ratio.double())
    return scan(TARGETS[learner.config.advantage], steps, Discount.of(learner.config))


def returns(network: str, n_envs: int, advantage: str = "gae") -> Found:
    """Compute next values, advantages, returns, and their means and variances."""
    learner, taken = learner_of(network, n_envs, advantage=advantage, n_step=3, normalize_reward=False)
    group = taken.groups["only"]
    made = kernels_of(learner)
    log_ratio = torch.randn(group.reward.shape, generator=torch.Generator().manual_seed(4))
    estimate = made.advantages(taken, group.reward, log_ratio)
    spread = {key: value for key, value in estimate.spread._asdict().items() if value is not None}
    found = {"advantage": estimate.advantage, "returns": estimate.returns} | spread

    advantages, returned = exact_returns(learner, taken, group.reward.double(), log_ratio)
    exact = {"advantage": advantages, "returns": returned}
    moments = [each for name in ("advantage", "returns") for each in (exact[name].mean(), exact[name].var())]
    moments += [1.0 - moments[1] / moments[3]]
    return numbers(found.items()), numbers((exact | dict(zip(spread, moments, strict=False))).items())


def observations(rows: int, features: int, unit: float = 1.0) -> Found:
    """Take observations in a unit into running statistics, twice; return what they are in the unit 1."""
    learner, _ = learner_of("relu 17-5-9", 3)
    normalizer = learner.policy.normalizer
    normalizer.__init__(features, torch.device("cpu"))
    observe = kernels_of(learner).observe
    random = np.random.default_rng(0)
    taken = [(random.normal(1000.0, 3.0, (rows, features)) * unit).astype(np.float32) for _ in range(2)]
    taken[1][:, -1] = taken[0][:, -1] = 7.0 * unit  # does not vary
    for part in taken:
        observe(torch.from_numpy(part))
    every = np.concatenate(taken).astype(np.float64)
    mean, variance = every.mean(0), every.var(0)
    varies = variance > np.maximum(RESOLUTION * np.abs(mean), TINY) ** 2
    exact = {"mean": mean, "variance": variance, "count": np.array(2.0 * rows), "shift": mean}
    exact["scale"] = 1.0 / np.sqrt(np.where(varies, variance, 1.0))
    units = {"mean": unit, "variance": unit**2, "shift": unit, "scale": np.where(varies, 1.0 / unit, 1.0)}
    return in_units(numbers(normalizer.tensors().items()), units), in_units(exact, units)


def in_units(arrays: Arrays, units: Mapping[str, float | np.ndarray]) -> Arrays:
    """Return arrays of which some have units of their own, as numbers near 1."""
    return {key: array / units.get(key, 1.0) for key, array in arrays.items()}


def rewards(n_envs: int, unit: float = 1.0) -> Found:
    """Normalize the rewards of two rollouts, in a unit, of which the second continues the first."""
    learner, taken = learner_of("relu 17-5-9", n_envs, normalize_reward=True)
    normalizer = learner.operations.rewards.__self__.reward_normalizer  # type: ignore[attr-defined]
    exact = RewardNormalizer(normalizer.gamma, normalizer.returns.shape, torch.device("cpu"))
    exact.returns = exact.returns.double()
    made, reward = kernels_of(learner), taken.groups["only"].reward.mul_(unit)
    ends = [flag[..., None] for flag in (taken.terminated, taken.truncated)]
    arrays: Found = ({}, {})
    for n in range(2):
        arrays[0][f"advantage {n}"] = made.advantages(taken, made.rewards(taken), None).advantage.double().numpy().copy()
        normalized = exact(reward.double(), *ends)
        arrays[1][f"advantage {n}"] = exact_returns(learner, taken, normalized, torch.zeros_like(normalized))[0].numpy().copy()
        taken.continues.fill_(True)
    units = {"mean": unit, "variance": unit**2, "returns": unit}
    states = (in_units(numbers(each.tensors().items()), units) for each in (normalizer, exact))
    return arrays[0] | next(states), arrays[1] | next(states)


def minibatches(rows: int, parts: int, step_rows: int) -> Found:
    """Draw an order, pick minibatches, take means over gradient steps, and adapt a learning rate twice."""
    learner, _ = learner_of("relu 17-5-9", 3, desired_kl=0.01)
    made, random = kernels_of(learner), torch.Generator().manual_seed(rows)
    advantage, of_steps = 1000.0 + torch.randn(rows, generator=random), torch.randn(3, 6, generator=random)
    order, cut = made.permutation(rows, 5, torch.tensor(2), step_rows), split(rows, parts)
    expected = permutation(rows, 5, torch.tensor(2), step_rows)
    arrays: Found = numbers({"order": order}.items()), numbers({"order": expected}.items())
    for n, (part, (picked, moments)) in enumerate(zip(cut, made.pick(advantage, order, cut), strict=True)):
        exact = advantage[expected[part]].double()
        of_exact = exact.mean(), exact.var() if len(exact) > 1 else torch.zeros(())
        for into, (each, (mean, variance)) in zip(arrays, ((picked, moments), (exact, of_exact)), strict=True):
            into.update(numbers({f"picked {n}": each, f"mean {n}": mean, f"variance {n}": variance}.items()))
    mean, size = None, len(learner.policy.parameters)
    for n, step in enumerate(of_steps):
        gradient = torch.zeros(size).index_fill_(0, torch.tensor(1), float(step[5].abs_()))  # of this norm
        mean = made.step_of_many(gradient, step[:5].clone(), mean, n + 1)
    before = float(learner.learning_rate)
    for kl in (0.1, 0.003):
        made.adapt(torch.tensor(kl), 0.01)
        arrays[0][f"rate at {kl}"] = numbers({"": learner.learning_rate}.items())[""]
    assert mean is not None
    arrays[0].update(numbers({"means": mean}.items()))
    arrays[1].update(numbers({"means": of_steps.double().mean(0)}.items()))
    return arrays[0], arrays[1] | {"rate at 0.1": np.array(before / 1.5), "rate at 0.003": np.array(before)}


def optimizer(network: str, max_norm: float | None) -> Found:
    learner, _ = learner_of(network, 3, max_grad_norm=max_norm)
    parameters = learner.policy.parameters
    exact, rate = parameters.double(), torch.tensor(float(learner.learning_rate), dtype=torch.float64)
    adam, state = Adam(exact, learner.optimizer.config), learner.optimizer
    step = kernels_of(learner).step
    arrays: Found = ({}, {})
    for n in range(3):
        given = torch.randn(parameters.shape, generator=torch.Generator().manual_seed(n)) * 10.0**-n
        arrays[0][f"norm {n}"] = step(given).double().numpy().copy()
        double = given.double()
        arrays[1][f"norm {n}"] = clip_norm(double, max_norm).numpy().copy()
        adam.step(exact, double, rate)
    found = {"parameters": parameters} | state.tensors()
    return arrays[0] | numbers(found.items()), arrays[1] | numbers(({"parameters": exact} | adam.tensors()).items())


def on_machine(part: Part, order: Order = Order.FORWARD, ulps: int = 0, mistake: Mistake | None = None) -> Found:
    machine().order, machine().ulps = order, ulps
    with on(machine(), mistake):
        return part()


def tolerance(name: str) -> float:
    """Return that of a part."""
    return OF_VALUES if name.startswith(("returns", "rewards")) else TOLERANCE


def check(part: Part, allowed: float = TOLERANCE) -> list[str]:
    clear(machine())
    found, exact = on_machine(part)
    problems = difference(exact, found, allowed)
    for order in (Order.BACKWARD, Order.RANDOM):
        problems += [] if same_bits(found, on_machine(part, order)[0]) else [f"other bits in order {order.name}"]
    wrong = difference(exact, on_machine(part, ulps=ULPS)[0], APPROXIMATE)
    problems += [f"approximate instructions {ULPS} units off: {text}" for text in wrong]
    return problems + [str(finding) for finding in wrong_in(machine())]


def parts() -> dict[str, Part]:
    """Return every part of the learner, by name: a gradient's kernels differ by loss, kind of action and network."""
    found: dict[str, Part] = {}
    for algorithm in ("ppo", "a2c"):
        for space, masked in (("multi", True), ("box", False), ("discrete", False)):
            for network in NETWORKS:
                for count in (1, 100) if algorithm == "ppo" else (100,):
                    name = f"{algorithm} {space}{' masked' if masked else ''}, {network}, {count} rows"
                    found[f"gradient: {name}"] = partial(gradient, algorithm, space, masked, network, count)
    for network in NETWORKS:
        for n_envs in (1, 45):
            found[f"returns: {network}, {n_envs} environments"] = partial(returns, network, n_envs)
        for max_norm in (0.5, None):
            found[f"optimizer: {network}, {f'clipped to {max_norm}' if max_norm else 'not clipped'}"] = partial(
                optimizer, network, max_norm
            )
    for advantage in ("nstep", "vtrace", "exarl_vtrace"):
        found[f"returns: {advantage}"] = partial(returns, "relu 17-5-9", 45, advantage)
    for rows, cut, step_rows in ((1, 1, 1), (700, 3, 50), (9000, 2, 1)):
        found[f"minibatches: {cut} of {rows} rows"] = partial(minibatches, rows, cut, step_rows)
    for rows, features in ((1, 3), (500, 3), (40, 256), (300, 1)):
        found[f"observations: {rows} rows of {features}"] = partial(observations, rows, features)
    for unit in (1e-25, 1e20, 1e-40):
        found[f"observations: 33 rows of 3 in a unit of {unit:g}"] = partial(observations, 33, 3, unit)
    for n_envs in (1, 150):
        found[f"rewards: {n_envs} environments"] = partial(rewards, n_envs)
    for unit in (1e-25, 1e20):
        found[f"rewards: 45 environments in a unit of {unit:g}"] = partial(rewards, 45, unit)
    return found
