"""Statistics of observations and rewards in any units: torch, kernels and several processes against float64."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import warprun
from tests.agents import build
from tests.environments.probes import BANDIT, SIGN_IN_UNITS, Units
from tests.learning.helpers import CPU, environment, rollout
from tests.learning.test_processes import communicators
from tests.learning.test_scales import probabilities, train
from tests.words import words
from tests.written import add_environment
from warprun.environment import Discrete
from warprun.learning.kernels.cpu.statistics import CpuObservations, CpuRewards
from warprun.learning.normalization import ObservationNormalizer, RewardNormalizer
from warprun.learning.settings.networks import NetworkConfig
from warprun.simulation.trajectory import Trajectory
from warprun.spec import OBS_LIMIT

UNITS = [1e-36, 1e-25, 1.0, 1e20, 1e36]
"""The squares of all but 1 are beyond float32."""
Observe = Callable[[ObservationNormalizer, torch.Tensor], None]


def by_torch(normalizer: ObservationNormalizer, rows: torch.Tensor) -> None:
    normalizer.statistics.update(rows)
    normalizer.refresh()


def by_kernels(normalizer: ObservationNormalizer, rows: torch.Tensor) -> None:
    CpuObservations(normalizer, 1)(rows)


def rows_in(unit: float, number: int = 999) -> torch.Tensor:
    """Return rows [B, 3] float32 about 2 units with a standard deviation of 1, 0.1 and 0 units."""
    random = torch.Generator().manual_seed(0)
    return ((2.0 + torch.randn(number, 3, generator=random, dtype=torch.float64) * torch.tensor([1.0, 0.1, 0.0])) * unit).float()


def check_statistics(normalizer: ObservationNormalizer, rows: torch.Tensor) -> None:
    """Check mean, variance and what normalises against the moments of `rows` in float64."""
    exact = rows.double()
    deviation = exact.std(0, correction=0)
    torch.testing.assert_close(normalizer.statistics.mean, exact.mean(0), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(normalizer.statistics.variance[:2], exact.var(0, correction=0)[:2], rtol=1e-9, atol=0.0)
    torch.testing.assert_close(normalizer.scale[:2].double(), 1.0 / deviation[:2], rtol=1e-6, atol=0.0)
    assert normalizer.scale[2] == 1.0
    seen = normalizer(rows)[:, :2]
    torch.testing.assert_close(seen.std(0, correction=0), torch.ones(2), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(seen.mean(0), torch.zeros(2), rtol=0.0, atol=1e-5)
    assert normalizer.constant_share() == torch.tensor(1 / 3)


@pytest.mark.parametrize("observe", [by_torch, by_kernels])
@pytest.mark.parametrize("unit", UNITS)
def test_observations_have_the_moments_of_float64(unit: float, observe: Observe) -> None:
    normalizer, rows = ObservationNormalizer(3, CPU), rows_in(unit)
    for part in rows.split(400):
        observe(normalizer, part)
    check_statistics(normalizer, rows)


@pytest.mark.parametrize("observe", [by_torch, by_kernels])
def test_numbers_without_digits_are_not_scaled(observe: Observe) -> None:
    """Those below 1e-38 have few digits or none, and 1 over their standard deviation is no float32."""
    normalizer = ObservationNormalizer(3, CPU)
    observe(normalizer, rows_in(1e-40))
    assert normalizer.scale.tolist() == [1.0] * 3
    assert normalizer(rows_in(1e-40)).abs().max() < 1e-38


@pytest.mark.parametrize("observe", [by_torch, by_kernels])
@pytest.mark.parametrize("unit", [1e-25, 1e20])
def test_processes_agree_on_the_moments_of_all(unit: float, observe: Observe) -> None:
    rows = rows_in(unit)
    normalizers = [ObservationNormalizer(3, CPU, each) for each in communicators()]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(observe, normalizers, rows.split(600)))
    for normalizer in normalizers:
        check_statistics(normalizer, rows)


@pytest.mark.parametrize("unit", [1e-25, 1e20])
def test_a_first_rollout_is_normalised_by_its_own_moments(unit: float) -> None:
    policy = build("ppo", environment(only=Discrete(3))).learners[0].policy
    rows = rows_in(unit)
    policy.normalize_by(rows)
    torch.testing.assert_close(policy.normalizer(rows)[:, :2].std(0, correction=0), torch.ones(2), rtol=1e-5, atol=0.0)


def rewards_by_torch(normalizer: RewardNormalizer, taken: Trajectory) -> torch.Tensor:
    return normalizer(taken.groups["only"].reward, *taken.ends("only"), taken)


def rewards_by_kernels(normalizer: RewardNormalizer, taken: Trajectory) -> torch.Tensor:
    return CpuRewards(normalizer, "only", 1)(taken)


@pytest.mark.parametrize("normalize", [rewards_by_torch, rewards_by_kernels])
@pytest.mark.parametrize("unit", UNITS)
def test_normalised_rewards_do_not_depend_on_their_unit(unit: float, normalize: Callable[..., torch.Tensor]) -> None:
    found = []
    for each in (1.0, unit):
        taken, normalizer = rollout(environment(only=Discrete(3))), RewardNormalizer(0.9, (5, 2), CPU)
        taken.groups["only"].reward.mul_(each)
        found.append(normalize(normalizer, taken).clone())
        assert normalizer.statistics.variance.item() > 0.0
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


# Learning --------------------------------------------------------------------------------------------------------------------------

LEARNED = [("observations", 1e-25), ("observations", 1e20), ("rewards", 1e-25), ("rewards", 1e20)]


@pytest.mark.by_default(1)
@pytest.mark.parametrize("case", LEARNED, ids=str)
def test_networks_of_torch_learn_in_any_units(case: tuple[str, float]) -> None:
    kind, unit = case
    env, probe = (BANDIT, "bandit") if kind == "rewards" else (SIGN_IN_UNITS, "sign_in_units")
    settings: dict[str, Any] = {"network": NetworkConfig(activation="elu"), "fused": False, "updates": 20}
    agent, taken = train("ppo", env, probe, params=Units(0.0, unit), **settings)
    assert agent.diagnostics(taken)["obs/clipped_share"] == 0
    if kind == "rewards":
        assert probabilities(agent, 0.0)[2] > 0.95
    else:
        assert probabilities(agent, unit)[1] > 0.95 and probabilities(agent, -unit)[0] > 0.95


QUANTITY = """
import numpy as np
from gymnasium.spaces import Box, Discrete


class Quantity:
    observation_space, action_space = Box(-np.inf, np.inf, (1,), np.float32), Discrete(2)

    def __init__(self, unit):
        self.unit = unit

    def reset(self, seed=None):
        self.random = self.random if seed is None else np.random.default_rng(seed)
        return self.look(), {}

    def step(self, action):
        reward = 1.0 if (np.sum(action) > 0) == (self.z > 0) else 0.0
        return self.look(), reward, False, False, {}

    def look(self):
        self.z = self.random.normal()
        return np.array([self.unit * self.z], np.float32)


environment = Quantity
"""


@pytest.mark.long
@pytest.mark.parametrize("unit", ["1.0e-25", "1.0e+20"])
@pytest.mark.parametrize("settings", ["agent=ppo agent.network=lstm", "agent=sac agent.normalize_obs=true agent.learning_starts=64"])
def test_a_loaded_policy_scales_by_the_deviation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, unit: str) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    space = "Discrete(2)" if "ppo" in settings else "Box(-1.0, 1.0, (1,), np.float32)"
    (tmp_path / "quantity.py").write_text(QUANTITY.replace("Discrete(2)", space))
    add_environment(tmp_path, "quantity", f"time_limit: 20\nkwargs:\n  unit: {unit}\n")
    short = words("env=quantity n_envs=8 total_steps=2048 eval.every=never eval.final_episodes=1 device=cpu log.live=false run_dir=out")
    warprun.train([*short, *settings.split()])
    policy = warprun.load("out")
    assert float(policy.modules["agent"].scale) == pytest.approx(1.0 / float(unit), rel=0.1)
    normalised = np.clip(policy.modules["agent"].scale.numpy() * np.float32(unit), -OBS_LIMIT, OBS_LIMIT)
    assert normalised == pytest.approx(1.0, rel=0.1)
