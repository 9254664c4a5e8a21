"""Returns and advantages of a rollout.

All take [T, ...] tensors: `reward`, `value` V(x_t), `next_value` V of the observation that step t led to (where truncated: of the final
observation, which is not `value[t + 1]`), and `terminated`, `truncated` bool. A terminated step bootstraps from 0, a truncated one from
`next_value`, and neither from the next episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from warprun.concurrency.communicator import Communicator
from warprun.learning.normalization import moments_over_processes
from warprun.learning.settings import OnPolicyConfig

ROUNDING = 2.0**-20
"""Advantages whose standard deviation is less than this part of their mean differ by the rounding of float32 sums."""


class Spread(NamedTuple):
    """Mean and variance of the advantages and of the returns of a rollout, [] each."""

    mean: torch.Tensor
    """Of the advantages."""
    variance: torch.Tensor
    """Of the advantages, unbiased. Returns minus values are the advantages, so this is also the variance of the values' errors."""
    returns_mean: torch.Tensor
    """Of the returns."""
    returns_variance: torch.Tensor
    """Of the returns, unbiased."""

    @staticmethod
    def of(advantage: torch.Tensor, returns: torch.Tensor) -> Spread:
        """Return the spread of rows [...]."""
        return Spread(*mean_and_variance(advantage), *mean_and_variance(returns))

    @staticmethod
    def of_sums(sums: torch.Tensor, count: int) -> Spread:
        """Return the spread of `count` rows from float64 sums [4]: of advantages and their squares, of returns and theirs."""
        advantage, advantage_square, returns, returns_square = sums
        freedom = max(1, count - 1)
        of_advantage, of_returns = (advantage_square - advantage**2 / count) / freedom, (returns_square - returns**2 / count) / freedom
        return Spread(
            (advantage / count).float(),
            of_advantage.clamp(min=0.0).float(),
            (returns / count).float(),
            of_returns.clamp(min=0.0).float(),
        )

    def over_processes(self, communicator: Communicator, count: int) -> Spread:
        """Return the spread of the rows of all processes, each of which has `count`."""
        advantage = variance_over_processes(communicator, self.mean, self.variance, count)
        return Spread(*advantage, *variance_over_processes(communicator, self.returns_mean, self.returns_variance, count))


def gae(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (advantage, return = advantage + value), [T, ...]; Schulman et al. 2016, eq. 16."""
    delta = reward + gamma * next_value * ~terminated - value
    decay = gamma * gae_lambda * (~(terminated | truncated)).to(delta.dtype)
    advantage = _discounted_sum(delta, decay)
    return advantage, advantage + value


def nstep(
    reward: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    gamma: float,
    n: int,
) -> torch.Tensor:
    """Return the n-step returns, [T, ...]; Sutton & Barto 2018, eq. 7.1; fewer rewards where the episode or the rollout ends."""
    one_step = reward + gamma * next_value * ~terminated
    goes_on = ~(terminated | truncated)[:-1]
    result = one_step
    for _ in range(min(n, len(reward)) - 1):
        longer = torch.where(goes_on, reward[:-1] + gamma * result[1:], one_step[:-1])
        result = torch.cat((longer, one_step[-1:]))
    return result


class Target(Protocol):
    """What values are trained to predict, and how much better an action was than predicted."""

    def __call__(
        self,
        reward: torch.Tensor,
        value: torch.Tensor,
        next_value: torch.Tensor,
        terminated: torch.Tensor,
        truncated: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (advantage, return), [T, ...]."""


@dataclass(frozen=True)
class GAE:
    """Generalised advantage estimation, see `gae`."""

    gamma: float
    gae_lambda: float

    def __call__(
        self, reward: torch.Tensor, value: torch.Tensor, next_value: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (advantage, return), [T, ...]."""
        return gae(reward, value, next_value, terminated, truncated, self.gamma, self.gae_lambda)


@dataclass(frozen=True)
class NStep:
    """N-step returns, see `nstep`; the advantage is the return minus the value."""

    gamma: float
    n: int

    def __call__(
        self, reward: torch.Tensor, value: torch.Tensor, next_value: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (advantage, return), [T, ...]."""
        returns = nstep(reward, next_value, terminated, truncated, self.gamma, self.n)
        return returns - value, returns


TARGETS: Mapping[str, Callable[[OnPolicyConfig], Target]] = {
    "gae": lambda config: GAE(config.gamma, config.gae_lambda),
    "nstep": lambda config: NStep(config.gamma, config.n_step),
}
"""The setting `agent.advantage` -> the target with the settings of an agent."""


def normalize_advantage(advantage: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Return `advantage` [R] less `mean`, over the standard deviation; 0, but for rounding, where it has a single row or does not vary."""
    deviation = variance.sqrt()
    return (advantage - mean).div_(torch.where(deviation > ROUNDING * mean.abs(), deviation + 1e-8, 1.0))


def explained_variance(spread: Spread) -> torch.Tensor:
    """Return 1 - Var(returns - value) / Var(returns), []; 1 is perfect; 0 if the returns do not vary."""
    explained = 1 - spread.variance / spread.returns_variance
    return torch.where(spread.returns_variance > 0, explained, torch.zeros_like(explained))


def mean_and_variance(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and unbiased variance of all `rows`, [] each; on CPU a third of the time of torch.var_mean."""
    mean = rows.mean()
    centered = (rows - mean).flatten()
    return mean, centered.dot(centered) / max(1, len(centered) - 1)


def variance_over_processes(
    communicator: Communicator, mean: torch.Tensor, variance: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the unbiased variance of the rows of all processes, from those of `count` rows of this one."""
    if communicator.size == 1:
        return mean, variance
    total = count * communicator.size
    mean, population = moments_over_processes(communicator, mean.double(), variance.double() * ((count - 1) / count))
    return mean.float(), (population * (total / (total - 1))).float()


def _discounted_sum(delta: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """Return a with a[t] = delta[t] + decay[t] * a[t + 1] and nothing after the last."""
    result = delta.clone()
    for t in range(len(delta) - 2, -1, -1):
        result[t].addcmul_(decay[t], result[t + 1])
    return result
