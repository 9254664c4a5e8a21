"""A rollout to learn from: rows or sequences with advantages, and the spread of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from warprun.learning.communicator import Communicator
from warprun.learning.formulas import advantage_scale, explained
from warprun.learning.tensors import on_tensors
from warprun.simulation.trajectory import GroupTrajectory, rows_of


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
    explained: torch.Tensor | None = None
    """[]: `explained_variance` of these, if kernels have computed it."""

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
    """Advantages and returns of a rollout."""

    advantage: torch.Tensor
    """[T, ...]."""
    returns: torch.Tensor
    """[T, ...]: what the value should be."""
    spread: Spread
    lasting: bool = False
    """Whether the next estimate of this trajectory is the same object, with new numbers in its tensors."""

    @staticmethod
    def of(group: GroupTrajectory, advantage: torch.Tensor, returns: torch.Tensor) -> Estimate:
        """Return the estimate of a group with the spread of its actors in the episode."""
        return Estimate(advantage, returns, Spread.of(*group.of_alive(advantage, returns)))


class Past(NamedTuple):
    """The past of the steps of a batch, for a policy with memory."""

    carry: torch.Tensor
    """[B, H]: what the policy of the rollout remembered before the first step."""
    begins: torch.Tensor
    """[T, B] bool: an episode begins with this step."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A rollout to learn from: T steps of B = N*A actors; features F, mask entries M, components C.

    Minibatches are made of its `samples`: rows [R, ...] in the place of [T, B, ...], R = T*B unless actors have left; with memory sequences
    [B, T, ...].
    """

    obs: torch.Tensor
    """[T, B, F]."""
    mask: torch.Tensor | None
    """[T, B, M] bool."""
    action: torch.Tensor
    """[T, B, C]."""
    log_prob: torch.Tensor
    """[T, B]: of `action` under the policy of the rollout."""
    value: torch.Tensor
    """[T, B]: by the network of the rollout."""
    advantage: torch.Tensor
    """[T, B]."""
    returns: torch.Tensor
    """[T, B]: what the value should be."""
    spread: Spread
    """Of the advantages and returns of the whole rollout, in all processes."""
    past: Past | None = None
    """None if the policy has no memory."""
    alive: torch.Tensor | None = None
    """[T, B] bool: the actor was in the episode; None: all were. Of others, advantage, return and value are 0."""
    activations: torch.Tensor | None = None
    """Activations of the network for all rows, if they were kept and the network is still the same (`Trajectory.activations`)."""
    step_rows: int | None = None
    """Rows of a step, if the rows are those of whole steps."""

    def samples(self) -> Batch:
        """Return the same as samples, each of which a gradient takes whole: rows [R, ...], step after step, or sequences [B, T, ...].

        Rows of actors that had left the episode are left out.
        """
        return self._samples

    @cached_property
    def _samples(self) -> Batch:
        if self.past is None:
            rows = self.each(lambda tensor: tensor.flatten(0, 1))
            if rows.alive is not None:
                return rows.pick(rows_of(rows.alive))
            return replace(rows, activations=self.activations, step_rows=self.value.shape[1])
        sequences = self.each(lambda tensor: tensor.transpose(0, 1).contiguous())
        return replace(sequences, past=Past(self.past.carry, self.past.begins.T.contiguous()))

    def pick(self, index: slice | torch.Tensor) -> Batch:
        """Return the samples that `index` picks: views for a slice, copies for a tensor of their numbers."""
        past = None if self.past is None else Past(self.past.carry[index], self.past.begins[index])
        return replace(self.each(lambda tensor: tensor[index]), past=past)

    def rows(self) -> Batch:
        """Return samples as rows [R, ...], without their past."""
        return self if self.past is None else self.each(lambda tensor: tensor.flatten(0, 1))

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """Return a batch of what `change` makes of each tensor; the past, the activations and the rows of a step are left out."""
        return Batch(
            obs=change(self.obs),
            mask=None if self.mask is None else change(self.mask),
            action=change(self.action),
            log_prob=change(self.log_prob),
            value=change(self.value),
            advantage=change(self.advantage),
            returns=change(self.returns),
            spread=self.spread,
            alive=None if self.alive is None else change(self.alive),
        )


def normalize_advantage(advantage: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Return `advantage` [R] less `mean`, over the standard deviation; 0, but for rounding, if it has a single row or does not vary."""
    return (advantage - mean).mul_(on_tensors(advantage_scale)(mean, variance))


def explained_variance(spread: Spread) -> torch.Tensor:
    """Return 1 - Var(returns - value) / Var(returns), []; 1 is perfect; 0 if the returns do not vary.

    The advantages of `spread` must be the errors returns - value.
    """
    return on_tensors(explained)(spread.variance, spread.returns_variance)


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
