"""The operations of on-policy learning, and torch's implementation of them, the reference; `kernels.choose` may give others.

Targets take tensors [T, ...] (`Steps`). A terminated step bootstraps from 0, a truncated one from `next_value`, and neither from the next
episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from warprun.learning import distributions
from warprun.learning.batch import Batch, Estimate, mean_and_variance, normalize_advantage
from warprun.learning.draws import permutation
from warprun.learning.normalization import RewardNormalizer
from warprun.learning.optimizers import Optimizer, clip_norm
from warprun.learning.policy import ActorCriticPolicy
from warprun.learning.settings import OnPolicyConfig
from warprun.simulation.trajectory import Trajectory
from warprun.spec import GroupSpec

STEP = 1.5
"""Factor by which an adapted learning rate changes."""

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Batch], tuple[torch.Tensor, ...]]
"""loss(log_prob, entropy, value, rows) -> means over the rows, the loss first."""
Moments = tuple[torch.Tensor, torch.Tensor]
"""Mean and variance, [] each, by which a gradient normalizes advantages."""


class Derivatives(NamedTuple):
    """The derivatives of a loss, such as `a2c_derivatives`, which is defined next to its loss."""

    function: Callable[..., tuple[float, ...]]
    """f(log_prob, value, old_log_prob, old_value, advantage, returns, coefficients) of one row, a function for kernels.

    It returns the derivatives of the row's loss with respect to log_prob and value, then the terms of the row: policy loss, value loss, KL
    divergence, and whether the ratio is clipped. The entropy bonus is not included.
    """
    coefficients: tuple[np.float32, ...]
    """Numbers of the loss, a NamedTuple."""


class Operations(NamedTuple):
    """The operations that learning from the rollouts of one group consists of; all implementations give the same numbers, but for rounding.

    The next call of an operation may overwrite its results. Operations on trajectories keep one result for each trajectory.
    """

    act: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
    """act(obs [R, F], policy_output [R, P], value [R]) writes what the policy gives for observations."""
    rewards: Callable[[Trajectory], torch.Tensor]
    """rewards(trajectory) returns the rewards in the units of the values, [T, N, A]."""
    next_value: Callable[[Trajectory], torch.Tensor]
    """next_value(trajectory) returns V of the observation that each step led to, [T, N, A]: where truncated the final one, where
    terminated 0."""
    advantages: Callable[[Trajectory, torch.Tensor, torch.Tensor | None], Estimate]
    """advantages(trajectory, reward, log_ratio) returns advantages and returns, [T, N, A]. `reward` is that of `rewards`, `log_ratio`
    [T, N, A] is for targets that use it."""
    gradient: Callable[[Loss, Batch, torch.Tensor, torch.Tensor | None, Moments | None], tuple[torch.Tensor, torch.Tensor]]
    """gradient(loss, batch, advantage, order, moments): see `on_policy.Learner.gradient`, but in this process alone."""
    step: Callable[[torch.Tensor], torch.Tensor]
    """step(gradient [P]) clips, perhaps in place, moves the parameters, and returns the norm before, []."""
    permutation: Callable[[int, int, torch.Tensor, int], torch.Tensor]
    """permutation(n, seed, draw [], step_rows) returns a random order of 0..n-1, [n] int64, see `draws.permutation`."""
    pick: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, Moments]]
    """pick(advantage [R, ...], order [B]) returns the advantages of these samples, [B, ...], with their mean and unbiased variance."""
    average: Callable[[torch.Tensor | None, int, torch.Tensor, torch.Tensor], torch.Tensor]
    """average(mean, number, terms [K], norm []) returns the means over `number` gradient steps, [K+1], perhaps in the place of `mean`,
    those over all but the last of them, whose terms and norm are given."""
    adapt: Callable[[torch.Tensor, float], None]
    """adapt(kl [], desired) changes the learning rate after an update, see `TorchOperations.adapt`."""
    observe: Callable[[torch.Tensor], None]
    """observe(obs [B, F]) takes observations into the statistics that normalise them, if there are any."""
    kept: int = 0
    """Rows of the network, if gradients take its activations from the rollout (`Trajectory.activations`); else 0."""


@dataclass(frozen=True)
class TorchOperations:
    """The operations of one group by torch, on what they read and change."""

    group: GroupSpec
    config: OnPolicyConfig
    policy: ActorCriticPolicy
    optimizer: Optimizer
    reward_normalizer: RewardNormalizer | None
    learning_rate: torch.Tensor
    """[] float64: like `entropy_coef` a tensor, so that a captured update reads what the schedule last wrote."""
    rate_factor: torch.Tensor
    """[] float64: the learning rate over the given one, where it is adapted."""
    entropy_coef: torch.Tensor
    """[]."""

    def operations(self) -> Operations:
        """Return all of them."""
        return Operations(
            act=self.policy.act,
            rewards=self.rewards,
            next_value=self.next_value,
            advantages=self.advantages,
            gradient=self.gradient,
            step=self.step,
            permutation=permutation,
            pick=pick,
            average=average,
            adapt=self.adapt,
            observe=self.policy.observe,
        )

    def rewards(self, trajectory: Trajectory) -> torch.Tensor:
        """Return the rewards of a rollout, normalized if the settings say so."""
        group = trajectory.groups[self.group.name]
        if not self.reward_normalizer:
            return group.reward
        return self.reward_normalizer(group.reward, *trajectory.ends(self.group.name), trajectory, group)

    def next_value(self, trajectory: Trajectory) -> torch.Tensor:
        """Return V of the observation that each step led to: the next one, where truncated the final one, where terminated 0."""
        group, values, carry = trajectory.groups[self.group.name], self.policy.values, trajectory.carries.get(self.group.name)
        actors = group.value.shape[1:]
        before = None if carry is None else trajectory.carry_before(self.group.name, trajectory.horizon).flatten(0, 1)
        bootstrap = values(group.obs[-1].flatten(0, 1), before).view(1, *actors)
        following = torch.cat((group.value[1:], bootstrap))
        # Only the CPU skips this if nothing is truncated: a GPU would make the host wait for the answer, and computes the values quickly.
        if trajectory.truncated.device.type != "cpu" or trajectory.truncated.any():
            slot = trajectory.final_slot()[..., None].expand(-1, *actors)
            used = int(slot.max()) + 1 if slot.device.type == "cpu" else len(group.final_obs)
            at_end = None if carry is None else trajectory.carry_at_truncations(self.group.name, used).flatten(0, 2)
            final_value = values(group.final_obs[:used].flatten(0, 2), at_end).view(-1, *actors)
            following = torch.where(trajectory.truncated[..., None], final_value.gather(0, slot), following)
        return following.masked_fill_(trajectory.ends(self.group.name)[0], 0.0)

    def advantages(self, trajectory: Trajectory, reward: torch.Tensor, log_ratio: torch.Tensor | None) -> Estimate:
        """Return advantages and returns by the target of the settings."""
        return self.estimate(trajectory, reward, self.next_value(trajectory), log_ratio)

    def estimate(self, trajectory: Trajectory, reward: torch.Tensor, next_value: torch.Tensor, log_ratio: torch.Tensor | None) -> Estimate:
        """Return the same for given next values, [T, N, A]."""
        group, target = trajectory.groups[self.group.name], TARGETS[self.config.advantage]
        steps = Steps(reward, group.value, next_value, *trajectory.ends(self.group.name), log_ratio)
        return Estimate.of(group, *target.compute(steps, self.config))

    def gradient(
        self, loss: Loss, batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None, moments: Moments | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient of a loss by autograd, and the means of its terms."""
        advantage = normalize_advantage(advantage, *moments) if moments else advantage

        def terms(part: slice) -> tuple[torch.Tensor, ...]:
            samples = replace(batch.pick(part if order is None else order[part]), advantage=advantage[part])
            output, value = self.policy.along(samples.obs, *samples.past) if samples.past else self.policy(samples.obs)
            rows = samples.rows()
            log_prob, entropy = distributions.evaluate(self.policy.space, output, rows.mask, rows.action)
            return loss(log_prob, entropy, value, rows)

        return self.policy.gradient(terms, len(advantage), advantage[0].numel())

    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        """Move the parameters against `gradient` [P], clipped in place; return the norm it had."""
        norm = clip_norm(gradient, self.config.max_grad_norm)
        self.optimizer.step(self.policy.parameters, gradient, self.learning_rate)
        return norm

    @property
    def rate_limits(self) -> tuple[float, float]:
        """Limits of `rate_factor`."""
        lowest, highest = self.config.learning_rates()
        return lowest / self.config.learning_rate, highest / self.config.learning_rate

    def adapt(self, kl: torch.Tensor, desired: float) -> None:
        """Lower the learning rate after an update that has moved the policy much more than `desired`, raise it after one that hardly has.

        `kl` [] is the divergence of the update. Factors and lower limit are those of rsl_rl (Schwarke et al. 2025), which changes the rate
        after every minibatch.
        """
        change = torch.where(kl > 2.0 * desired, 1.0 / STEP, torch.where(kl < 0.5 * desired, STEP, 1.0).double())
        self.rate_factor.mul_(change).clamp_(*self.rate_limits)
        self.learning_rate.copy_(self.rate_factor * self.config.learning_rate)


def pick(advantage: torch.Tensor, order: torch.Tensor) -> tuple[torch.Tensor, Moments]:
    """Return the advantages of the samples `order` [B], with their mean and unbiased variance, [] each."""
    picked = advantage[order]
    return picked, mean_and_variance(picked.flatten())


def average(mean: torch.Tensor | None, number: int, terms: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """Return the means of terms [K] and norm [] over `number` gradient steps, [K+1]; `mean`: those over the steps before the last."""
    last = torch.cat((terms, norm[None]))
    return last if mean is None else mean + (last - mean) / number


class Steps(NamedTuple):
    """The steps of a rollout, from which targets are computed, [T, ...] each."""

    reward: torch.Tensor
    value: torch.Tensor
    """V of the observation of the step."""
    next_value: torch.Tensor
    """V of the observation that the step led to; where truncated of the final one, which is not that of the next row."""
    terminated: torch.Tensor
    """bool."""
    truncated: torch.Tensor
    """bool."""
    log_ratio: torch.Tensor | None = None
    """log(pi / mu) of the actions, pi the policy that learns and mu the one that acted."""


def gae(steps: Steps, config: OnPolicyConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (advantage, return = advantage + value); Schulman et al. 2016, eq. 16."""
    delta = steps.reward + config.gamma * steps.next_value * ~steps.terminated - steps.value
    decay = config.gamma * config.gae_lambda * (~(steps.terminated | steps.truncated)).to(delta.dtype)
    advantage = _discounted_sum(delta, decay)
    return advantage, advantage + steps.value


def nstep(steps: Steps, config: OnPolicyConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (return - value, n-step return); Sutton & Barto 2018, eq. 7.1."""
    returns = _nstep_returns(steps, config.gamma, config.n_step)
    return returns - steps.value, returns


def vtrace(steps: Steps, config: OnPolicyConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (advantage, v) of a rollout of another policy; Espeholt et al. 2018, eq. 1 and section 4.2.

    `gae_lambda` is the lambda of remark 2: it shortens the traces of v, not the one step of the advantage, rho (r + gamma v' - V). Without
    lag v is the lambda-return.
    """
    assert steps.log_ratio is not None
    ratio, gamma = steps.log_ratio.exp(), config.gamma
    rho = ratio.clamp(max=config.rho_bar)
    one_step = steps.reward + gamma * steps.next_value * ~steps.terminated
    goes_on = (~(steps.terminated | steps.truncated)).to(steps.value.dtype)
    trace = gamma * config.gae_lambda * ratio.clamp(max=config.c_bar) * goes_on
    correction = _discounted_sum(rho * (one_step - steps.value), trace)
    # Where the episode goes on within the rollout, v' replaces the value of the next observation: v' - V' is the next correction.
    following = torch.cat((correction[1:], torch.zeros_like(correction[:1])))
    return rho * (one_step + gamma * goes_on * following - steps.value), steps.value + correction


def exarl_vtrace(steps: Steps, config: OnPolicyConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what EXARL calls V-trace, without ratios (github.com/exalearn/EXARL, agent A2C_Vtrace).

    With the Monte Carlo return R and delta = R - V: the return is V + gamma delta, the advantage delta + gamma times this return.
    """
    delta = _nstep_returns(steps, config.gamma, len(steps.reward)) - steps.value
    returns = steps.value + config.gamma * delta
    return delta + config.gamma * returns, returns


class Target(NamedTuple):
    """How advantages and returns are computed."""

    compute: Callable[[Steps, OnPolicyConfig], tuple[torch.Tensor, torch.Tensor]]
    """compute(steps, settings) returns (advantage, return), [T, ...]."""
    uses_ratio: bool = False
    """Whether it needs `Steps.log_ratio`, and values of the policy that learns."""
    gives_errors: bool = True
    """Whether advantages are the errors of the values: return minus value."""


TARGETS: Mapping[str, Target] = {
    "gae": Target(gae),
    "nstep": Target(nstep),
    "vtrace": Target(vtrace, uses_ratio=True, gives_errors=False),
    "exarl_vtrace": Target(exarl_vtrace, gives_errors=False),
}
"""By the setting `agent.advantage`."""


def _nstep_returns(steps: Steps, gamma: float, n: int) -> torch.Tensor:
    """Return the n-step returns, of fewer rewards where the episode or the rollout ends."""
    reward, one_step = steps.reward, steps.reward + gamma * steps.next_value * ~steps.terminated
    goes_on = ~(steps.terminated | steps.truncated)[:-1]
    result = one_step
    for _ in range(min(n, len(reward)) - 1):
        longer = torch.where(goes_on, reward[:-1] + gamma * result[1:], one_step[:-1])
        result = torch.cat((longer, one_step[-1:]))
    return result


def _discounted_sum(delta: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """Return a with a[t] = delta[t] + decay[t] * a[t + 1] and nothing after the last."""
    result = delta.clone()
    for t in range(len(delta) - 2, -1, -1):
        result[t].addcmul_(decay[t], result[t + 1])
    return result
