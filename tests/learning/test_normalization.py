"""Running statistics against the golden numbers, what they normalise, and the slices that threads share."""

import threading

import pytest
import torch

from tests.learning.helpers import CPU, Golden, close
from warprun.learning.networks import ActorCritic, flatten_parameters
from warprun.learning.normalization import ObservationNormalizer, RewardNormalizer, RunningStatistics, moments
from warprun.learning.operations import scan
from warprun.learning.settings.networks import NetworkConfig
from warprun.learning.slices import ROWS, Slices, split
from warprun.learning.targets import TARGETS, Discount, Step
from warprun.spec import OBS_LIMIT, Box


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
    assert torch.equal(normalizer(obs), obs.clamp(-OBS_LIMIT, OBS_LIMIT))
    normalizer.statistics.merge([(*moments(obs), len(obs))])
    assert torch.equal(normalizer(obs), obs.clamp(-OBS_LIMIT, OBS_LIMIT))
    normalizer.refresh()
    close(normalizer(obs).mean(0), torch.zeros(3), 1e-5)
    close(normalizer(obs).var(0, correction=0), torch.ones(3), 1e-5)
    assert normalizer(torch.full((1, 3), 1e9)).tolist() == [[OBS_LIMIT] * 3]


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
    ends, discount = terminated | truncated, Discount(0.9, 0.9 * 0.8, 1.0, 1.0, 1)
    scaled = (each.masked_fill(terminated, 0.0) for each in (following, (following - mean) / deviation))
    plain, _ = scan(TARGETS["gae"], Step(reward, value, next(scaled), ends), discount)
    found, _ = scan(TARGETS["gae"], Step(normalised, (value - mean) / deviation, next(scaled), ends), discount)
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


# Slices: the same bits for any number of threads, and the gradient of the whole ---------------------------------------

N_ROWS = 5 * ROWS + 77


@pytest.mark.parametrize("rows", [1, ROWS, ROWS + 1, N_ROWS])
def test_slices_cover_the_batch_once(rows: int) -> None:
    parts = Slices(CPU, 1).cut(rows)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(rows))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) <= ROWS
    assert max(sizes) - min(sizes) <= 1


def test_split_has_no_remainder_left_over() -> None:
    assert [part.stop - part.start for part in split(11, 4)] == [2, 3, 3, 3]


def gradient(threads: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sliced gradient and terms, and the gradient of the whole batch in one piece."""
    torch.manual_seed(0)
    network = ActorCritic(Box(4), 2, NetworkConfig()).to(dtype)
    flatten_parameters(network)
    leaves = list(network.parameters())
    obs = torch.randn(N_ROWS, 4, dtype=dtype)

    def terms(part: slice) -> tuple[torch.Tensor, ...]:
        output, value = network(obs[part])
        return (output.log_softmax(-1)[:, 0].square() + value.sin()).mean(), value.mean()

    found, means = Slices(CPU, threads).gradient(terms, leaves, N_ROWS)
    whole = torch.autograd.grad(terms(slice(0, N_ROWS))[0], leaves)
    return found, means, torch.cat([g.flatten() for g in whole])


def test_one_and_two_threads_give_the_same_bits() -> None:
    one, two = gradient(1, torch.float32), gradient(2, torch.float32)
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])


def test_sliced_gradient_is_that_of_the_whole() -> None:
    found, _, whole = gradient(2, torch.float64)
    close(found, whole, 1e-12)


def test_every_thread_computes_slices() -> None:
    """The calling one, too, at the same time as the other: each waits in its first slice until both are there."""
    both = threading.Barrier(2, timeout=20)

    def meet(part: slice) -> int:
        if part.start in (0, parts[len(parts) // 2].start):
            both.wait()
        return threading.get_ident()

    slices = Slices(CPU, 2)
    parts = slices.cut(N_ROWS)
    found = slices.map(meet, N_ROWS)
    assert len(found) == len(parts)
    assert set(found) > {threading.get_ident()}


def test_errors_of_a_slice_arrive() -> None:
    def fail(part: slice) -> None:
        raise ArithmeticError(part)

    with pytest.raises(ArithmeticError):
        Slices(CPU, 2).map(fail, N_ROWS)
