"""Running statistics and what they normalise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from warprun.learning.communicator import Communicator, SingleProcess, mean_
from warprun.learning.formulas import merged, normalized_reward, varies
from warprun.learning.tensors import on_tensors
from warprun.spec import OBS_LIMIT, Field, GroupSpec

if TYPE_CHECKING:  # a policy that has left warprun has no simulator
    from warprun.learning.settings.agent import AgentConfig
    from warprun.simulation.trajectory import GroupTrajectory, Trajectory

SINGLE = SingleProcess()
Part = tuple[torch.Tensor, torch.Tensor, int]
"""Mean and population variance, [F] float64 each, and the number of rows."""


class RunningStatistics:
    """Mean and population variance of all rows seen so far by all processes, [F] float64; mean 0 and variance 1 before the first.

    float64 because sums over billions of rows are beyond float32; these are a few numbers only. Rows of before count as no more than
    `window` times those that were taken in last; None: each as one.
    """

    def __init__(self, features: int, device: torch.device, communicator: Communicator = SINGLE, window: int | None = None) -> None:
        self.communicator, self.window = communicator, window
        self.mean = torch.zeros(features, dtype=torch.float64, device=device)
        self.variance = torch.ones(features, dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.float64, device=device)

    def update(self, rows: torch.Tensor) -> None:
        """Take in `rows` [B, F], B at least 1."""
        self.merge([(*moments(rows), len(rows))])

    def merge(self, parts: Sequence[Part]) -> None:
        """Take in the rows of `parts` and those of the other processes, which may have other parts."""
        of_all = [moments_over_processes(self.communicator, *together(parts))] if self.communicator.size > 1 else parts
        for part in of_all:
            self._merge(*part)
        self.forget(sum(count for *_, count in of_all))

    def _merge(self, mean: torch.Tensor, variance: torch.Tensor, count: int | torch.Tensor) -> None:
        """Take in `count` rows, of which only the mean and the population variance, [F], are known; Chan et al. 1979."""
        mean, variance = merged(self.mean, self.variance, self.count, mean - self.mean, variance, count)
        self.mean.copy_(mean)
        self.variance.copy_(variance)
        self.count += count

    def forget(self, count: int | torch.Tensor) -> None:
        """Let all rows so far count as those of the window, after `count` rows were taken in."""
        if self.window is not None:
            self.count.clamp_(max=self.window * count)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        return {"mean": self.mean, "variance": self.variance, "count": self.count}


def inverse_deviation(mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Return 1 / standard deviation, [F] float64, or 1 for what does not vary but for rounding."""
    return torch.where(on_tensors(varies)(mean, variance), variance, 1.0).rsqrt()


def moments(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the population variance of `rows` [B, F], [F] float64 each."""
    # float64, because float32 has no squares of numbers below 1e-23 or above 1e19. torch.var_mean takes several times as long.
    centered = rows.to(torch.float64, copy=True)
    mean = centered.mean(0)
    return mean, centered.sub_(mean).square_().mean(0)


def together(parts: Sequence[Part]) -> Part:
    """Return the mean, the population variance and the number of the rows of all parts."""
    total = sum(count for *_, count in parts)
    mean = torch.stack([mean * (count / total) for mean, _, count in parts]).sum(0)
    # The law of total variance.
    variance = torch.stack([(variance + (own - mean).square()) * (count / total) for own, variance, count in parts]).sum(0)
    return mean, variance, total


def moments_over_processes(
    communicator: Communicator, mean: torch.Tensor, variance: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, int | torch.Tensor]:
    """Return the mean, the population variance and the number of the rows of all processes, from those of `count` rows of this one."""
    if communicator.size == 1:
        return mean, variance, count
    sums = communicator.sum_(torch.cat((mean.reshape(-1), mean.new_ones(1))).mul_(count))
    total = sums[-1]
    overall = (sums[:-1] / total).view_as(mean)
    # The law of total variance; about the overall mean, because the squares of large means would drown it.
    spread = variance + (mean - overall).square()
    mean_(communicator, count, spread)
    return overall, spread, total


def normalized(obs: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return observations [..., F] as networks get them, with `shift` and `scale` [F]."""
    return ((obs - shift) * scale).clamp_(-OBS_LIMIT, OBS_LIMIT)


def by_channel(mean: torch.Tensor, variance: torch.Tensor, fields: Sequence[Field]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and population variance, [F] each, of which the columns of a channel have those of all its cells.

    The law of total variance.
    """
    if fields:
        mean, variance = mean.clone(), variance.clone()
    for field in fields:
        means, variances = (every[field.columns].view(field.order) for every in (mean, variance))
        overall = means.mean(field.cell_axes, keepdim=True)
        variances.copy_((variances + (means - overall).square()).mean(field.cell_axes, keepdim=True).expand_as(variances))
        means.copy_(overall.expand_as(means))
    return mean, variance


class ObservationNormalizer:
    """Gives observations mean 0 and variance 1, of `fields` each channel as a whole."""

    def __init__(self, features: int, device: torch.device, communicator: Communicator = SINGLE, fields: Sequence[Field] = ()) -> None:
        self.fields = fields
        self.statistics = RunningStatistics(features, device, communicator)
        self.shift = torch.zeros(features, device=device)
        self.scale = torch.ones(features, device=device)

    def __call__(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the normalised `obs` [..., F]."""
        return normalized(obs, self.shift, self.scale)

    def refresh(self) -> None:
        """Normalise by the running statistics as they are now; their later changes count from the next call on."""
        self.use(self.statistics.mean, self.statistics.variance)

    def use(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Normalise by this mean and this population variance, [F] each, from now on."""
        mean, variance = by_channel(mean, variance, self.fields)
        self.shift.copy_(mean)
        self.scale.copy_(inverse_deviation(mean, variance))

    def clipped_share(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the share of the numbers in `obs` [..., F] that are clipped, []."""
        return (((obs - self.shift) * self.scale).abs() > OBS_LIMIT).float().mean()

    def constant_share(self) -> torch.Tensor:
        """Return the share of features that have not varied but for rounding, []; of fields that of whole channels."""
        mean, variance = by_channel(self.statistics.mean, self.statistics.variance, self.fields)
        return (~on_tensors(varies)(mean, variance)).float().mean()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        return self.statistics.tensors() | {"shift": self.shift, "scale": self.scale}


def observation_normalizer(
    config: AgentConfig, group: GroupSpec, device: torch.device, communicator: Communicator
) -> ObservationNormalizer | None:
    """Return what normalises the observations of a group; None if its settings say that nothing does."""
    if not config.normalize_obs:
        return None
    fields = () if config.network.encoder is None else group.observation.fields
    return ObservationNormalizer(group.observation.size, device, communicator, fields)


class RewardNormalizer:
    """Shifts and scales rewards so that discounted returns have mean 0 and variance 1, by the statistics so far.

    The statistics are of the discounted return that each actor has had up to now in its episode. Scaling alone does not centre: rewards of
    20, 21 and 22 have a standard deviation of 0.8, so scaled they are about 25. So the mean return m is subtracted as a constant potential
    (Ng, Harada & Russell 1999, eq. 2): r + gamma phi(s') - phi(s) with phi = m, and 0 after termination. Every value is then less by m,
    every advantage the same, whatever m is. Nothing is clipped.
    """

    def __init__(
        self,
        gamma: float,
        actors: tuple[int, int],
        device: torch.device,
        communicator: Communicator = SINGLE,
        sources: int = 1,
        window: int | None = None,
    ) -> None:
        """`window`: how many rollouts count, see `RunningStatistics`."""
        self.gamma = gamma
        self.sources = sources
        self.statistics = RunningStatistics(1, device, communicator, window)
        self.returns = torch.zeros((sources * actors[0], actors[1]), device=device)
        """[sources * N, A]: discounted return of each actor after the last step seen, for each source of rollouts."""

    def __call__(
        self,
        reward: torch.Tensor,
        terminated: torch.Tensor,
        truncated: torch.Tensor,
        taken: Trajectory | None = None,
        group: GroupTrajectory | None = None,
    ) -> torch.Tensor:
        """Take in the rewards of a rollout, [T, N, A], with the ends of episodes, [T, N, A or 1] bool each, and return them normalised.

        `taken` is the rollout, which says where it comes from; None: it continues that of the call before. `group` is the part of it that
        says which actors are in the episode; None: all are. Of others no reward counts.
        """
        ends = terminated | truncated
        returns = torch.empty_like(reward)
        of_source = self.returns.view(self.sources, *reward.shape[1:])
        several = taken is not None and self.sources > 1
        running = of_source.index_select(0, taken.source.view(1))[0] if taken and several else of_source[0]
        if taken:
            running = running * taken.continues
        for t in range(len(reward)):
            torch.add(reward[t], running, alpha=self.gamma, out=returns[t])
            running = returns[t] * ~ends[t]
        if taken and several:
            of_source.index_copy_(0, taken.source.view(1), running[None])
        else:
            of_source[0].copy_(running)
        self.statistics.update(returns.view(-1, 1) if group is None else group.of_alive(returns)[0].view(-1, 1))
        mean = self.statistics.mean.to(reward.dtype)
        found = on_tensors(normalized_reward)(reward, terminated, mean, self._scale(reward), self.gamma)
        return found if group is None or group.alive is None else found.masked_fill_(~group.alive[:-1], 0.0)

    def largest(self, reward: torch.Tensor) -> torch.Tensor:
        """Return the size of the largest of these rewards in units of the standard deviation, []."""
        return (reward.abs().amax() * self._scale(reward)).squeeze()

    def _scale(self, reward: torch.Tensor) -> torch.Tensor:
        return inverse_deviation(self.statistics.mean, self.statistics.variance).to(reward.dtype)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        return self.statistics.tensors() | {"returns": self.returns}
