"""Running statistics against the golden numbers, and what they normalise."""

import torch

from tests.learning.helpers import CPU, Golden, close
from warprun.learning.normalization import CLIP, ObservationNormalizer, RewardNormalizer, RunningStatistics, moments
from warprun.learning.operations import Steps, gae
from warprun.learning.settings import OnPolicyConfig


def test_running_statistics(golden: Golden) -> None:
    g = golden("runstat")
    ends = g["splits"].tolist()
    statistics = RunningStatistics(3, CPU)
    for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        statistics.update(g["data"][start:end])
        close(statistics.mean, g["mean"][i])
        close(statistics.variance, g["var"][i])
    assert statistics.count == 140


def test_large_offsets_do_not_lose_the_variance() -> None:
    rows = 1e4 + torch.randn(100_000, 1)
    statistics = RunningStatistics(1, CPU)
    for part in rows.split(1000):
        statistics.update(part)
    close(statistics.variance, rows.double().var(0, correction=0), 1e-9)


def test_observations_follow_the_statistics_only_after_refresh() -> None:
    normalizer, obs = ObservationNormalizer(3, CPU), torch.randn(1000, 3) * 5 + 2
    assert torch.equal(normalizer(obs), obs.clamp(-CLIP, CLIP))
    normalizer.statistics.merge([(*moments(obs), len(obs))])
    assert torch.equal(normalizer(obs), obs.clamp(-CLIP, CLIP))
    normalizer.refresh()
    close(normalizer(obs).mean(0), torch.zeros(3), 1e-5)
    close(normalizer(obs).var(0, correction=0), torch.ones(3), 1e-5)
    assert normalizer(torch.full((1, 3), 1e9)).tolist() == [[CLIP] * 3]


def test_rewards_are_scaled_by_the_discounted_return_of_the_episode_so_far() -> None:
    reward = torch.tensor([[[1.0]], [[2.0]], [[3.0]], [[4.0]]])
    ends = torch.tensor([[[False]], [[True]], [[False]], [[False]]])
    normalizer, never = RewardNormalizer(0.5, (1, 1), CPU), torch.zeros_like(ends)
    halves = [normalizer(reward[:2], ends[:2], never[:2]), normalizer(reward[2:], ends[2:], never[2:])]
    returns = torch.tensor([1.0, 2.5, 3.0, 5.5], dtype=torch.float64)
    # Less the mean return where the episode ends, else less what of it the discount takes: all of 1.75, half of 1.75; half of 3.
    close(halves[0], (torch.tensor([1 - 0.875, 2 - 1.75]) / returns[:2].std(correction=0)).view(2, 1, 1), 1e-6)
    close(halves[1], (torch.tensor([3 - 1.5, 4 - 1.5]) / returns.std(correction=0)).view(2, 1, 1), 1e-6)
    assert reward.flatten().tolist() == [1, 2, 3, 4]


def test_normalised_rewards_have_the_same_advantages_but_for_scale() -> None:
    """With values that are less by the mean return and then scaled: Ng, Harada & Russell 1999."""
    random = torch.Generator().manual_seed(0)
    reward, value, following = (torch.randn(20, 5, 1, generator=random, dtype=torch.float64) for _ in range(3))
    terminated = torch.rand(20, 5, 1, generator=random) < 0.2
    truncated = ~terminated & (torch.rand(20, 5, 1, generator=random) < 0.2)
    reward += 7.0
    normalizer = RewardNormalizer(0.9, (5, 1), CPU)
    normalizer.returns = normalizer.returns.double()
    normalised = normalizer(reward, terminated, truncated)
    mean, deviation = normalizer.statistics.mean, normalizer.statistics.variance.sqrt()
    settings = OnPolicyConfig(gamma=0.9, gae_lambda=0.8)
    plain, _ = gae(Steps(reward, value, following, terminated, truncated), settings)
    found, _ = gae(Steps(normalised, (value - mean) / deviation, (following - mean) / deviation, terminated, truncated), settings)
    close(found, plain / deviation, 1e-9)


def test_what_does_not_vary_is_not_scaled_and_rounding_is_no_variance() -> None:
    for constant in (0.0, 0.1, 1e-9, 1e6):
        normalizer = ObservationNormalizer(1, CPU)
        rows = torch.full((10_007, 1), constant)
        normalizer.statistics.update(rows)
        normalizer.statistics.update(rows[:11])
        normalizer.refresh()
        assert normalizer.scale.item() == 1.0
        assert normalizer(rows).abs().max() <= 1e-6 * constant


def test_the_share_of_clipped_numbers() -> None:
    normalizer = ObservationNormalizer(2, CPU)
    assert normalizer.clipped_share(torch.tensor([[9.0, 11.0], [-10.5, 0.0]])) == 0.5
