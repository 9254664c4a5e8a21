"""Returns and advantages of a rollout.

All take [T, ...] tensors: `reward`, `value` V(x_t), `next_value` V of the observation that step t led to (where truncated: of the final
observation, which is not `value[t + 1]`), and `terminated`, `truncated` bool. A terminated step has no future; a truncated one bootstraps
from `next_value`, and like it lets nothing of the next episode in.
"""

from __future__ import annotations

import torch


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


def explained_variance(value: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
    """Return 1 - Var(returns - value) / Var(returns), []; 1 is perfect; 0 if the returns do not vary."""
    variance = _squares(returns)
    explained = 1 - _squares(returns - value) / variance
    return torch.where(variance > 0, explained, torch.zeros_like(explained))


def _squares(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares about the mean; on CPU a third of the time of torch.var."""
    centered = (rows - rows.mean()).flatten()
    return centered.dot(centered)


def _discounted_sum(delta: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """Return a with a[t] = delta[t] + decay[t] * a[t + 1] and nothing after the last."""
    result = delta.clone()
    for t in range(len(delta) - 2, -1, -1):
        result[t].addcmul_(decay[t], result[t + 1])
    return result
