"""Returns and advantages of a rollout.

All take [T, ...] tensors: `reward`, `value` V(x_t), `next_value` V of the observation that step t led to (where truncated: of the final
observation, which is not `value[t + 1]`), and `terminated`, `truncated` bool. A terminated step has no future; a truncated one bootstraps
from `next_value`, and like it lets nothing of the next episode in.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

ROUNDING = 2.0**-20
"""Advantages whose standard deviation is less than this part of their mean differ by the rounding of float32 sums."""


class Spread(NamedTuple):
    """Of all rows of a rollout, [] each."""

    mean: torch.Tensor
    """Of the advantages."""
    variance: torch.Tensor
    """Of the advantages, unbiased; and as returns less values are the advantages, of the values' errors."""
    returns: torch.Tensor
    """Variance of the returns, unbiased."""

    @staticmethod
    def of(advantage: torch.Tensor, returns: torch.Tensor) -> Spread:
        """Return the spread of rows [...]."""
        return Spread(*mean_and_variance(advantage), mean_and_variance(returns)[1])

    @staticmethod
    def of_sums(sums: torch.Tensor, count: int) -> Spread:
        """Return the spread of `count` rows from float64 sums [4]: of advantages and their squares, of returns and theirs."""
        advantage, advantage_square, returns, returns_square = sums
        freedom = max(1, count - 1)
        variances = ((advantage_square - advantage**2 / count) / freedom, (returns_square - returns**2 / count) / freedom)
        return Spread((advantage / count).float(), *(variance.clamp(min=0.0).float() for variance in variances))


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


def vtrace(
    log_rho: torch.Tensor,
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    gamma: float,
    rho_bar: float,
    c_bar: float,
    trace_lambda: float,
    pg_rho_bar: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (v_s, policy-gradient advantage), [T, ...]; Espeholt et al. 2018 (IMPALA), eq. 1 and section 4.2.

    `log_rho` is the logarithm of the target policy's probability over the behaviour policy's.
    """
    rho = log_rho.exp()
    ends = terminated | truncated
    delta = rho.clamp(max=rho_bar) * (reward + gamma * next_value * ~terminated - value)
    decay = gamma * trace_lambda * rho.clamp(max=c_bar) * ~ends
    v = value + _discounted_sum(delta, decay)
    # The v of the next step, but where the episode or the rollout ends only the value is known.
    next_v = torch.cat((torch.where(ends[:-1], next_value[:-1], v[1:]), next_value[-1:]))
    return v, rho.clamp(max=pg_rho_bar) * (reward + gamma * next_v * ~terminated - value)


def normalize_advantage(advantage: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Return `advantage` [R] less `mean`, over the standard deviation; 0, but for rounding, where it has a single row or does not vary."""
    deviation = variance.sqrt()
    return (advantage - mean).div_(torch.where(deviation > ROUNDING * mean.abs(), deviation + 1e-8, 1.0))


def explained_variance(spread: Spread) -> torch.Tensor:
    """Return 1 - Var(returns - value) / Var(returns), []; 1 is perfect; 0 if the returns do not vary."""
    explained = 1 - spread.variance / spread.returns
    return torch.where(spread.returns > 0, explained, torch.zeros_like(explained))


def mean_and_variance(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and unbiased variance of all `rows`, [] each; on CPU a third of the time of torch.var_mean."""
    mean = rows.mean()
    centered = (rows - mean).flatten()
    return mean, centered.dot(centered) / max(1, len(centered) - 1)


def _discounted_sum(delta: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """Return a with a[t] = delta[t] + decay[t] * a[t + 1] and nothing after the last."""
    result = delta.clone()
    for t in range(len(delta) - 2, -1, -1):
        result[t].addcmul_(decay[t], result[t + 1])
    return result
