"""The operations of on-policy learning, and torch's implementation of them, the reference; `kernels.choose` may give others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import NamedTuple, cast

import numpy as np
import torch

from warprun.errors import UserError, shown
from warprun.learning import distributions
from warprun.learning.batch import Batch, Estimate, mean_and_variance, normalize_advantage
from warprun.learning.draws import permutation
from warprun.learning.formulas import MOST_TERMS, STEP, Row
from warprun.learning.normalization import RewardNormalizer
from warprun.learning.optimizers import Optimizer, clip_norm
from warprun.learning.policy import ActorCriticPolicy
from warprun.learning.settings.on_policy import OnPolicyConfig
from warprun.learning.targets import TARGETS, Discount, Step, Target
from warprun.learning.tensors import converted, filled, on_tensors, python_numbers
from warprun.simulation.trajectory import Trajectory
from warprun.spec import GroupSpec
from warprun.user_code import errors_of_user

RESERVED = ("entropy", "grad_norm", "explained_variance", "learning_rate")
"""Names that every update shows."""
Moments = tuple[torch.Tensor, torch.Tensor]
"""Mean and variance, [] each, by which a gradient normalizes advantages."""


class RowLoss(NamedTuple):
    """The loss of a row, less the entropy bonus: a formula for kernels and torch, such as `ppo_loss`."""

    formula: Callable[..., tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]]
    """f(log_prob, value, row, coefficients) returns the derivatives of the loss by log_prob and value, and the terms that are shown.

    log_prob is that of the row's action and value that of its observation, both by the network that learns. `row` has `log_prob` and
    `value` by the network of the rollout, `advantage` and `returns`.
    """
    coefficients: tuple[float | np.float32, ...]
    """A NamedTuple of numbers, float32 for kernels."""
    terms: tuple[str, ...]
    """Names of the terms, of which means over rows are shown as `loss/NAME`."""

    def of_rows(self, log_prob: torch.Tensor, value: torch.Tensor, row: Row) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Return the derivatives and the terms of rows [R] by torch."""
        by_log_prob, by_value, terms = on_tensors(self.formula)(log_prob, value, row, python_numbers(self.coefficients))
        if not isinstance(terms, tuple) or len(terms) != len(self.terms):
            raise ValueError(f"its terms must be a tuple of {len(self.terms)}, ({', '.join(self.terms)})")
        return filled(by_log_prob, value), filled(by_value, value), [filled(term, value) for term in terms]

    def tried(self, name: str) -> RowLoss:
        """Return this loss of the agent `name`, with float32 numbers. Raises UserError if it does not work on two rows."""
        place = f"the loss of agent={name}"
        if not isinstance(self.formula, FunctionType):
            raise UserError(f"{place}: its formula is {shown(self.formula)}, not a function")
        taken = [each for each in self.terms if each in RESERVED or self.terms.count(each) > 1]
        if taken or len(self.terms) >= MOST_TERMS:
            why = f"the name {taken[0]} is another's" if taken else f"there are {len(self.terms)} terms, and {MOST_TERMS - 1} can be"
            raise UserError(f"{place}: {why}; rename or leave out terms")
        for number in self.coefficients:
            if isinstance(number, bool) or not isinstance(number, int | float | np.number):
                raise UserError(f"{place}: a coefficient must be a number, not {shown(number)}")
        made = self._replace(coefficients=converted(self.coefficients, np.float32))
        with errors_of_user(f"{place} fails on tensors; write it with warprun.math, and branches as where", "a loss"):
            numbers = [torch.tensor([0.5, 1.5]) + 0.1 * k for k in range(6)]
            by_log_prob, by_value, terms = made.of_rows(numbers[0], numbers[1], Row(*numbers[2:]))
        if any(each._version for each in numbers):
            raise UserError(f"{place} changes a number that it gets; write x = x + y in the place of x += y")
        if not torch.stack((by_log_prob, by_value, *terms)).isfinite().all():
            raise UserError(f"{place} gives numbers that are not finite")
        return made


class Operations(NamedTuple):
    """The operations that learning from the rollouts of one group consists of; all implementations give the same numbers, but for rounding.

    The next call of an operation may overwrite its results. Operations on trajectories keep one result for each trajectory.
    """

    act: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
    """act(obs [R, F], policy_output [R, P], value [R]) writes what the policy gives for observations."""
    remember: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
    """remember(obs, policy_output, value, before [R, H], after [R, H]) does `act` with memory: it writes the carries after the step."""
    rewards: Callable[[Trajectory], torch.Tensor]
    """rewards(trajectory) returns the rewards, [T, N, A], in the units of the values unless `advantages` normalises them."""
    advantages: Callable[[Trajectory, torch.Tensor, torch.Tensor | None], Estimate]
    """advantages(trajectory, reward, log_ratio) returns advantages and returns, [T, N, A]. `reward` is that of `rewards`, `log_ratio`
    [T, N, A] is for targets that use it."""
    gradient: Callable[[Batch, torch.Tensor, torch.Tensor | None, Moments | None], tuple[torch.Tensor, torch.Tensor]]
    """gradient(batch, advantage, order, moments): see `on_policy.Learner.gradient`, but in this process alone."""
    step: Callable[[torch.Tensor], torch.Tensor]
    """step(gradient [P]) clips, perhaps in place, moves the parameters, and returns the norm before, []."""
    permutation: Callable[[int, int, torch.Tensor, int], torch.Tensor]
    """permutation(n, seed, draw [], step_rows) returns a random order of 0..n-1, [n] int64, see `draws.permutation`."""
    pick: Callable[[torch.Tensor, torch.Tensor, Sequence[slice]], list[tuple[torch.Tensor, Moments]]]
    """pick(advantage [R, ...], order [R], parts) returns for each minibatch, a part of the order, the advantages of its samples, [B, ...],
    with their mean and unbiased variance. The parts are those of `slices.split`."""
    step_of_many: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, int], torch.Tensor]
    """step_of_many(gradient [P], terms [K], mean, number) does `step`, and returns the means of the terms and of the norm over `number`
    gradient steps, [K+1], perhaps in the place of `mean`, those over all but this last one."""
    adapt: Callable[[torch.Tensor, float], None]
    """adapt(kl [], desired) changes the learning rate after an update, see `TorchOperations.adapt`."""
    observe: Callable[[torch.Tensor], None]
    """observe(obs [B, F]) takes observations into the statistics that normalise them, if there are any."""
    keep: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int], None] | None = None
    """keep(obs, policy_output, value, activations, row) does `act` for a row of a trajectory, and writes its `activations`."""
    kept: int = 0
    """Rows of the network, if gradients take its activations from the rollout (`Trajectory.activations`); else 0."""


@dataclass(frozen=True)
class TorchOperations:
    """The operations of one group by torch, on what they read and change."""

    group: GroupSpec
    config: OnPolicyConfig
    loss: RowLoss
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
            remember=self.policy.act_with_memory,
            rewards=self.rewards,
            advantages=self.advantages,
            gradient=self.gradient,
            step=self.step,
            permutation=permutation,
            pick=pick,
            step_of_many=averaging(self.step, average),
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
        group, target = trajectory.groups[self.group.name], TARGETS[self.config.advantage]
        terminated, truncated = trajectory.ends(self.group.name)
        ends = terminated | truncated
        ends[-1].fill_(True)
        steps = Step(reward, group.value, self.next_value(trajectory), ends, 0.0 if log_ratio is None else log_ratio)
        return Estimate.of(group, *scan(target, steps, Discount.of(self.config)))

    def gradient(
        self, batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None, moments: Moments | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient of the loss by autograd, and the means of its terms and of the entropy."""
        advantage = normalize_advantage(advantage, *moments) if moments else advantage

        def terms(part: slice) -> tuple[torch.Tensor, ...]:
            samples = replace(batch.pick(part if order is None else order[part]), advantage=advantage[part])
            output, value = self.policy.along(samples.obs, *samples.past) if samples.past else self.policy(samples.obs)
            rows = samples.rows()
            log_prob, entropy = distributions.evaluate(self.policy.space, output, rows.mask, rows.action)
            row = Row(rows.log_prob, rows.value, rows.advantage, rows.returns)
            by_log_prob, by_value, of_row = self.loss.of_rows(log_prob.detach(), value.detach(), row)
            # Its gradient is that of the loss.
            linear = (by_log_prob * log_prob + by_value * value - self.entropy_coef * entropy).mean()
            return linear, *(term.mean() for term in of_row), entropy.mean()

        gradient, means = self.policy.gradient(terms, len(advantage), advantage[0].numel())
        return gradient, means[1:]

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


def pick(advantage: torch.Tensor, order: torch.Tensor, parts: Sequence[slice]) -> list[tuple[torch.Tensor, Moments]]:
    """Return the advantages of each part of the samples `order` [R], with their mean and unbiased variance, [] each."""
    picked = [advantage[order[part]] for part in parts]
    return [(each, mean_and_variance(each.flatten())) for each in picked]


def average(mean: torch.Tensor | None, number: int, terms: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """Return the means of terms [K] and norm [] over `number` gradient steps, [K+1]; `mean`: those over the steps before the last."""
    last = torch.cat((terms, norm[None]))
    return last if mean is None else mean + (last - mean) / number


def averaging(
    step: Callable[[torch.Tensor], torch.Tensor], average: Callable[[torch.Tensor | None, int, torch.Tensor, torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, int], torch.Tensor]:
    """Return `Operations.step_of_many` made of a step and a function `average`."""
    return lambda gradient, terms, mean, number: average(mean, number, terms, step(gradient))


def scan(target: Target, steps: Step, p: Discount) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns, [T, ...] each, by torch."""
    p = python_numbers(p)
    formula, value = on_tensors(target.formula), cast(torch.Tensor, steps.value)
    horizon, advantage, returns = len(value), torch.empty_like(value), value.clone()
    if target.windowed:
        for _ in range(min(p.n_step, horizon)):
            _, advantage, returns = formula(torch.cat((returns[1:], returns[-1:])), steps, p)
        return advantage, returns
    given = Step(*(each.unbind() if isinstance(each, torch.Tensor) else [each] * horizon for each in steps))  # type: ignore[arg-type]
    after = torch.zeros_like(value[0])
    for t in range(horizon - 1, -1, -1):
        after, advantage[t], returns[t] = formula(after, Step(*(each[t] for each in given)), p)  # type: ignore[misc, index]
    return advantage, returns
