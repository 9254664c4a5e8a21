"""Running statistics against the golden numbers, and what they normalise."""

from __future__ import annotations

import torch

from tests.agents.helpers import CPU, Golden, close
from warprun.agents.normalization import CLIP, ObservationNormalizer, RewardNormalizer, RunningStatistics, moments


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
    normalizer.statistics.merge(*moments(obs), len(obs))
    assert torch.equal(normalizer(obs), obs.clamp(-CLIP, CLIP))
    normalizer.refresh()
    close(normalizer(obs).mean(0), torch.zeros(3), 1e-5)
    close(normalizer(obs).var(0, correction=0), torch.ones(3), 1e-5)
    assert normalizer(torch.full((1, 3), 1e9)).tolist() == [[CLIP] * 3]


def test_rewards_are_scaled_by_the_discounted_return_of_the_episode_so_far() -> None:
    reward = torch.tensor([[[1.0]], [[2.0]], [[3.0]], [[4.0]]])
    ends = torch.tensor([[[False]], [[True]], [[False]], [[False]]])
    normalizer = RewardNormalizer(0.5, CPU)
    halves = [normalizer(reward[:2], ends[:2]), normalizer(reward[2:], ends[2:])]
    returns = torch.tensor([1.0, 2.5, 3.0, 5.5], dtype=torch.float64)
    close(halves[0], reward[:2] / returns[:2].std(correction=0).float(), 1e-6)
    close(halves[1], reward[2:] / returns.std(correction=0).float(), 1e-6)
    assert reward.flatten().tolist() == [1, 2, 3, 4]
