"""Returns and advantages of a rollout.

All take [T, ...] tensors: `reward`, `value` V(x_t), `next_value` V of the observation that step t led to (where truncated: of the final
observation, which is not `value[t + 1]`), and `terminated`, `truncated` bool. A terminated step bootstraps from 0, a truncated one from
`next_value`, and neither from the next episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch

from warprun.learning.communicator import Communicator
from warprun.learning.settings import OnPolicyConfig
from warprun.simulation.trajectory import GroupTrajectory

ROUNDING = 2.0**-20
"""Advantages whose standard deviation is less than this part of their mean differ by the rounding of float32 sums."""


class Spread(NamedTuple):
    """Mean and variance of the advantages and of the returns of a rollout, [] each."""

    mean: torch.Tensor
    """Of the advantages."""
    variance: torch.Tensor
    """Of the advantages, unbiased."""
    returns_mean: torch.Tensor
    """Of the returns."""
    returns_variance: torch.Tensor
    """Of the returns, unbiased."""

    @staticmethod
    def of(advantage: torch.Tensor, returns: torch.Tensor) -> Spread:
        """Return the spread of rows [...]."""
        return Spread(*mean_and_variance(advantage), *mean_and_variance(returns))

    def over_processes(self, communicator: Communicator, count: int) -> Spread:
        """Return the spread of the rows of all processes, of which this one has `count`."""
        if communicator.size == 1:
            return self
        advantage = variance_over_processes(communicator, self.mean, self.variance, count)
        return Spread(*advantage, *variance_over_processes(communicator, self.returns_mean, self.returns_variance, count))


class Estimate(NamedTuple):
    """What a policy learns from a rollout. Kernels return the same object for a trajectory again, with new numbers in its tensors."""

    advantage: torch.Tensor
    """[T, ...]."""
    returns: torch.Tensor
    """[T, ...]: what the value should be."""
    spread: Spread
    explained_variance: torch.Tensor | None = None
    """[]: that of `spread`, if kernels have computed it."""

    @staticmethod
    def of(group: GroupTrajectory, advantage: torch.Tensor, returns: torch.Tensor) -> Estimate:
        """Return the estimate of a group with the spread of its actors in the episode."""
        return Estimate(advantage, returns, Spread.of(*group.of_alive(advantage, returns)))


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
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    log_ratio: torch.Tensor,
    gamma: float,
    trace_lambda: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (advantage, v), [T, ...], of a rollout of another policy; Espeholt et al. 2018, eq. 1 and section 4.2.

    `log_ratio` is log(pi / mu) of the actions, pi the policy that learns and mu the one that acted. `trace_lambda` is the lambda of
    remark 2: it shortens the traces of v, not the one step of the advantage, rho (r + gamma v' - V). Without lag v is the lambda-return.
    """
    ratio = log_ratio.exp()
    rho = ratio.clamp(max=rho_bar)
    one_step = reward + gamma * next_value * ~terminated
    goes_on = (~(terminated | truncated)).to(value.dtype)
    correction = _discounted_sum(rho * (one_step - value), gamma * trace_lambda * ratio.clamp(max=c_bar) * goes_on)
    v = value + correction
    # Where the episode goes on within the rollout, v' replaces the value of the next observation: v' - V' is the next correction.
    following = torch.cat((correction[1:], torch.zeros_like(correction[:1])))
    return rho * (one_step + gamma * goes_on * following - value), v


class Steps(NamedTuple):
    """What targets are computed from, [T, ...] each."""

    reward: torch.Tensor
    value: torch.Tensor
    """V(x_t)."""
    next_value: torch.Tensor
    """V of the observation that step t led to; where truncated, of the final observation."""
    terminated: torch.Tensor
    truncated: torch.Tensor
    log_ratio: torch.Tensor | None = None
    """log(pi / mu) of the actions, see `vtrace`; for targets that use it."""


class Target(Protocol):
    """What values are trained to predict, and how much better an action was than predicted."""

    uses_ratio: ClassVar[bool]
    """Whether it needs `log_ratio`, and values by the policy that learns instead of the one that acted."""
    gives_errors: ClassVar[bool]
    """Whether the advantages are the errors of the values: return minus value."""

    def __call__(self, steps: Steps) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (advantage, return), [T, ...]."""


@dataclass(frozen=True)
class GAE:
    """Generalised advantage estimation, see `gae`."""

    gamma: float
    gae_lambda: float
    uses_ratio: ClassVar[bool] = False
    gives_errors: ClassVar[bool] = True

    def __call__(self, steps: Steps) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (advantage, return), [T, ...]."""
        return gae(*steps[:5], self.gamma, self.gae_lambda)


@dataclass(frozen=True)
class NStep:
    """N-step returns, see `nstep`; the advantage is the return minus the value."""

    gamma: float
    n: int
    uses_ratio: ClassVar[bool] = False
    gives_errors: ClassVar[bool] = True

    def __call__(self, steps: Steps) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (advantage, return), [T, ...]."""
        returns = nstep(steps.reward, steps.next_value, steps.terminated, steps.truncated, self.gamma, self.n)
        return returns - steps.value, returns


@dataclass(frozen=True)
class VTrace:
    """V-trace, see `vtrace`: advantages and returns of the policy that learns, from a rollout of another one."""

    gamma: float
    trace_lambda: float
    rho_bar: float
    c_bar: float
    uses_ratio: ClassVar[bool] = True
    gives_errors: ClassVar[bool] = False

    def __call__(self, steps: Steps) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (advantage, return), [T, ...]."""
        assert steps.log_ratio is not None
        return vtrace(*steps[:5], steps.log_ratio, self.gamma, self.trace_lambda, self.rho_bar, self.c_bar)


@dataclass(frozen=True)
class ExarlVTrace:
    """What EXARL calls V-trace, without ratios (github.com/exalearn/EXARL, agent A2C_Vtrace).

    With the Monte Carlo return R and delta = R - V: the return is V + gamma delta, the advantage delta + gamma times this return.
    """

    gamma: float
    uses_ratio: ClassVar[bool] = False
    gives_errors: ClassVar[bool] = False

    def __call__(self, steps: Steps) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (advantage, return), [T, ...]."""
        monte_carlo = nstep(steps.reward, steps.next_value, steps.terminated, steps.truncated, self.gamma, len(steps.reward))
        delta = monte_carlo - steps.value
        returns = steps.value + self.gamma * delta
        return delta + self.gamma * returns, returns


TARGETS: Mapping[str, Callable[[OnPolicyConfig], Target]] = {
    "gae": lambda config: GAE(config.gamma, config.gae_lambda),
    "nstep": lambda config: NStep(config.gamma, config.n_step),
    "vtrace": lambda config: VTrace(config.gamma, config.gae_lambda, config.rho_bar, config.c_bar),
    "exarl_vtrace": lambda config: ExarlVTrace(config.gamma),
}
"""The setting `agent.advantage` -> the target with the settings of an agent."""


def normalize_advantage(advantage: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Return `advantage` [R] less `mean`, over the standard deviation; 0, but for rounding, where it has a single row or does not vary."""
    deviation = variance.sqrt()
    return (advantage - mean).div_(torch.where(deviation > ROUNDING * mean.abs(), deviation + 1e-8, 1.0))


def explained_variance(spread: Spread) -> torch.Tensor:
    """Return 1 - Var(returns - value) / Var(returns), []; 1 is perfect; 0 if the returns do not vary.

    The advantages of `spread` must be the errors returns - value.
    """
    explained = (spread.returns_variance - spread.variance) / spread.returns_variance
    return torch.where(spread.returns_variance > 0, explained, 0.0)


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
    own = mean.double()
    # Sums instead of two exchanges: in float64 they lose nothing that float32 rows have.
    square = own.square() + variance.double() * ((count - 1) / count)
    total_sum, total_square, total = communicator.sum_(torch.stack((own, square, torch.ones_like(own))).mul_(count)).unbind()
    overall = total_sum / total
    population = (total_square / total - overall.square()).clamp(min=0.0)
    return overall.float(), (population * (total / (total - 1))).float()


def _discounted_sum(delta: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """Return a with a[t] = delta[t] + decay[t] * a[t + 1] and nothing after the last."""
    result = delta.clone()
    for t in range(len(delta) - 2, -1, -1):
        result[t].addcmul_(decay[t], result[t + 1])
    return result
