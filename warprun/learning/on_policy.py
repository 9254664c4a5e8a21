"""On-policy agents: a `Learner` for each group, which turns rollouts into batches with advantages and takes gradient steps.

An update runs `OnPolicyAgent.update` -> `learn` -> for each group `Learner.batch`, `learn_group` of the algorithm, which calls
`Learner.gradient` and `Learner.step`, and the statistics of observations. What computes all this is in `Learner.operations`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Generic, NamedTuple, TypeVar

import torch

from warprun.kernels.mlp import Network
from warprun.learning import distributions
from warprun.learning.batch import (
    Batch,
    Estimate,
    Past,
    Spread,
    explained_variance,
    variance_over_processes,
)
from warprun.learning.capture import LastingBatches, captured
from warprun.learning.communicator import mean_
from warprun.learning.interfaces import Context, by_group
from warprun.learning.kernels.choose import operations, recurrence
from warprun.learning.normalization import RewardNormalizer, observation_normalizer
from warprun.learning.operations import Moments, RowLoss, TorchOperations
from warprun.learning.optimizers import OPTIMIZERS
from warprun.learning.policy import ActorCriticPolicy
from warprun.learning.settings.agent import group_config
from warprun.learning.settings.on_policy import OnPolicyConfig
from warprun.learning.slices import Slices
from warprun.learning.targets import TARGETS
from warprun.simulation.trajectory import GroupTrajectory, Trajectory
from warprun.spec import GroupSpec, Spec
from warprun.state import State, counting, derived_seed, setting

C = TypeVar("C", bound=OnPolicyConfig)


class Learner(Generic[C]):
    """One group's policy and everything that trains it."""

    def __init__(self, config: C, group: GroupSpec, context: Context, slices: Slices, seed: int, loss: RowLoss) -> None:
        device, communicator = context.device, context.communicator
        self.config, self.name, self.actors, self.seed, self.communicator = config, group.name, group.size, seed, communicator
        normalizer = observation_normalizer(config, group, device, communicator)
        self.policy = ActorCriticPolicy(group, config.network, normalizer, device, slices, derived_seed(seed, "network"))
        recurrence(self.policy.module, context)
        self.optimizer = OPTIMIZERS[config.optimizer.name](self.policy.parameters, config.optimizer)
        actors = (context.n_envs, group.size)
        self.reward_normalizer = (
            RewardNormalizer(config.gamma, actors, device, communicator, context.sources or 1, config.return_window)
            if config.normalize_reward
            else None
        )
        self.target = TARGETS[config.advantage]
        self.shows = *loss.terms, "entropy", "grad_norm"
        """Names of the means that a gradient step has."""
        self.learning_rate = torch.full((), config.learning_rate, dtype=torch.float64, device=device)
        self.rate_factor = torch.ones((), dtype=torch.float64, device=device)
        """Learning rate over the given one, where it is adapted (`Operations.adapt`)."""
        self.entropy_coef = torch.zeros((), device=device)
        trained = self.policy, self.optimizer, self.reward_normalizer
        self.reference = TorchOperations(group, config, loss, *trained, self.learning_rate, self.rate_factor, self.entropy_coef)
        self.operations = operations(self.reference, context)
        self._batches = LastingBatches()
        self._renormalized = False
        """Whether observations are normalised otherwise than in the rollout that is learned from."""
        self._set_rate, self._set_entropy_coef = setting(self.learning_rate), setting(self.entropy_coef)
        self._scheduled: tuple[float | None, float | None] = None, None
        """Learning rate and entropy coefficient that were set last."""

    def schedule(self, progress: float) -> None:
        """Set learning rate and entropy coefficient to their values at `progress`, 0 to 1, of the run."""
        config = self.config
        wanted = (
            _linear(config.learning_rate, config.learning_rate_end, progress),
            _linear(config.entropy_coef, config.entropy_coef_end, progress),
        )
        rate, entropy_coef = wanted
        if entropy_coef != self._scheduled[1]:
            self._set_entropy_coef(entropy_coef)
        if rate != self._scheduled[0]:
            self._set_rate(rate)
            if config.adapts_learning_rate:
                self.learning_rate.mul_(self.rate_factor)
        self._scheduled = wanted

    def batch(self, trajectory: Trajectory) -> Batch:
        """Return `trajectory` with its advantages and returns; the next call for this trajectory may overwrite them."""
        group = trajectory.groups[self.name]
        reward = self.operations.rewards(trajectory)
        log_prob = self.judge(trajectory) if self.target.uses_ratio else group.log_prob
        log_ratio = log_prob - group.log_prob if self.target.uses_ratio else None
        if group.alive is not None:
            # Actors that have left are in a state of value 0 in which nothing happens, so targets need not know of them.
            group.value.masked_fill_(~group.alive[:-1], 0.0)
        found = self.operations.advantages(trajectory, reward, log_ratio)
        return self._batches(trajectory, self.name, found, lambda: self._batch(trajectory, log_prob, found))

    def _batch(self, trajectory: Trajectory, log_prob: torch.Tensor, found: Estimate) -> Batch:
        group = trajectory.groups[self.name]
        mask, alive = (None if tensor is None else tensor[:-1] for tensor in (group.mask, group.alive))
        spread = found.spread.over_processes(self.communicator, group.rows)
        given = group.obs[:-1], mask, group.action, log_prob, group.value, found.advantage, found.returns, spread
        batch = Batch(*given, alive=alive).each(lambda tensor: tensor.flatten(1, 2))  # environments and actors to one dimension
        kept = None if self._renormalized else trajectory.activations.get(self.name)
        return replace(batch, past=self.past(trajectory), activations=kept)

    def past(self, trajectory: Trajectory) -> Past | None:
        """Return what the steps of a rollout follow; None if the policy has no memory."""
        if not self.policy.carry:
            return None
        ended = trajectory.terminated | trajectory.truncated
        begins = torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))  # before row 0 the carry is that of the episode that goes on
        return Past(trajectory.carries[self.name].first.flatten(0, 1), begins.repeat_interleave(self.actors, 1))

    def judge(self, trajectory: Trajectory) -> torch.Tensor:
        """Return the log-probabilities of the actions, [T, N, A], by the policy as it is now, and replace the values by its own."""
        group, past = trajectory.groups[self.name], self.past(trajectory)
        obs, action = group.obs[:-1].flatten(0, 2), group.action.flatten(0, 2)
        mask = None if group.mask is None else group.mask[:-1].flatten(0, 2)
        policy_output = obs.new_empty(len(obs), group.policy_output.shape[-1])
        if past:
            self.policy.act_along(group.obs[:-1].flatten(1, 2), *past, policy_output, group.value.view(-1))
        else:
            self.operations.act(obs, policy_output, group.value.view(-1))
        return distributions.evaluate(self.policy.space, policy_output, mask, action)[0].view_as(group.log_prob)

    def pick(self, advantage: torch.Tensor, order: torch.Tensor, parts: Sequence[slice]) -> list[tuple[torch.Tensor, Moments | None]]:
        """Return for each of the `parts` of `order`, the minibatches of an epoch, the advantages of its samples [B] and the moments that a
        gradient normalizes them by, or None.

        The moments are mean and variance over the minibatches of all processes.
        """
        found = self.operations.pick(advantage, order, parts)
        if not self.config.normalize_advantage:
            return [(picked, None) for picked, _ in found]
        return [(picked, variance_over_processes(self.communicator, *moments, picked.numel())) for picked, moments in found]

    def gradient(
        self, batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None = None, moments: Moments | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of the loss, and the means of its terms and of the entropy, [K], over the rows of all processes.

        `batch` are `Batch.samples`, `order` [B] picks some of them (None: all), and `advantage` [B], of sequences [B, T], is what the loss
        takes as theirs, normalized by `moments`, mean and variance, if given. The next call may overwrite gradient and means.
        """
        gradient, means = self.operations.gradient(batch, advantage, order, moments)
        mean_(self.communicator, len(advantage), gradient, means)
        return gradient, means

    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        """Move the parameters against `gradient` [P], clipped, perhaps in place; return the norm it had, [].

        The next call may overwrite it.
        """
        return self.operations.step(gradient)

    def shown(self, means: torch.Tensor, norm: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return what `gradient` gave, or its mean over gradient steps, by name, with the norm of the gradient."""
        values = (*means.unbind(), *([] if norm is None else [norm]))
        return dict(zip(self.shows[: len(values)], values, strict=True))

    def normalize_by(self, group: GroupTrajectory) -> None:
        """Normalise the observations of a rollout by their own moments, although the policy saw them as they are."""
        self._renormalized = True
        self.policy.normalize_by(*group.of_alive(group.obs[:-1]))

    def observe(self, obs: torch.Tensor) -> None:
        """Add `obs` [B, F] to the statistics of observations, if there are any, and normalise by them from now on."""
        self._renormalized = False
        self.operations.observe(obs)

    def report(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the metrics that every update has."""
        explained = batch.spread.explained
        if explained is None:
            errors = batch.spread
            if not self.target.gives_errors:
                rows = batch.samples().rows()
                errors = Spread.of(rows.returns - rows.value, rows.returns).over_processes(self.communicator, len(rows.returns))
            explained = explained_variance(errors)
        return {"explained_variance": explained, "learning_rate": self.learning_rate}

    def diagnostics(self, trajectory: Trajectory) -> dict[str, torch.Tensor]:
        """Return metrics of a rollout, [] each, that are too slow for every update."""
        group, found = trajectory.groups[self.name], {}
        if self.policy.normalizer:
            found["obs/clipped_share"] = self.policy.normalizer.clipped_share(*group.of_alive(group.obs[:-1]))
            found["obs/constant_share"] = self.policy.normalizer.constant_share()
        if self.reward_normalizer:
            found["reward/largest"] = self.reward_normalizer.largest(group.reward)
        return found

    def trained(self) -> list[torch.Tensor]:
        """Return the tensors that a gradient step changes."""
        return [self.policy.parameters, *self.optimizer.tensors().values()]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        tensors = self.policy.tensors()
        tensors |= {f"optimizer/{name}": tensor for name, tensor in self.optimizer.tensors().items()}
        if self.reward_normalizer:
            tensors |= {f"reward/{name}": tensor for name, tensor in self.reward_normalizer.tensors().items()}
        if self.config.adapts_learning_rate:
            tensors["rate_factor"] = self.rate_factor
        return tensors


class DeviceWork(NamedTuple):
    """The work of the device in every update, of which the host decides nothing."""

    learn: Callable[[Trajectory], dict[str, torch.Tensor]]


class OnPolicyAgent(ABC, Generic[C]):
    """One policy for each group, each trained on its own; a derived class says how one learns from a batch (`learn_group`)."""

    Config: ClassVar[type]
    """Dataclass of its settings."""
    exploration = None
    """Policies give distributions, from which actions are sampled."""
    recordable: ClassVar[bool] = False
    """Whether updates on CPU may be recorded (`capture.captured`)."""

    def __init__(self, config: C, spec: Spec, context: Context) -> None:
        slices = Slices(context.device, context.threads)
        self.learners: list[Learner[C]] = []
        for i, group in enumerate(spec.groups):
            own = group_config(config, group.name)
            self.learners.append(
                Learner(own, group, context, slices, derived_seed(context.seed, "group", i), self.loss(own).tried(own.name))
            )
        self.carry = {learner.name: learner.policy.carry for learner in self.learners}
        self.kept = {learner.name: learner.operations.kept for learner in self.learners if learner.operations.kept}
        self.updates = torch.zeros((), dtype=torch.int64, device=context.device)
        """Updates so far: a tensor, which a captured update reads."""
        self._count_update = counting(self.updates)
        self._has_updated = False
        """Whether `update` was called in this process."""
        self.device_work = DeviceWork(learn=captured(self.learn, context, type(self)))

    @property
    def learning_starts(self) -> int:
        return 0

    def flops_per_env_step(self) -> float:
        """Return the floating-point operations of the matrix products of an environment step of all actors, with training."""
        return sum(flops_per_row(learner.policy.parameters.numel(), learner.config.passes()) * learner.actors for learner in self.learners)

    def act(self, trajectory: Trajectory, row: int) -> None:
        for learner in self.learners:
            group = trajectory.groups[learner.name]
            # Views, never copies: what is written must arrive in the trajectory.
            outputs, features = group.policy_output.shape[-1], group.obs.shape[-1]
            rows = group.obs[row].view(-1, features), group.policy_output.view(-1, outputs), group.value[row].view(-1)
            if learner.policy.carry:
                before, after = trajectory.carry_before(learner.name, row), trajectory.carries[learner.name].after[row]
                learner.operations.remember(*rows, before.flatten(0, 1), after.view(-1, learner.policy.carry))
            elif learner.operations.keep and learner.name in trajectory.activations:
                learner.operations.keep(*rows, trajectory.activations[learner.name], row)
            else:
                learner.operations.act(*rows)

    def update(self, trajectory: Trajectory, progress: float) -> dict[str, torch.Tensor]:
        """Learn from a rollout at `progress`, 0 to 1, of the run; return metrics, [] each."""
        self.schedule(progress)
        if not self._has_updated:
            self._has_updated = True
            if int(self.updates) == 0:  # waits for the device, once
                # No statistics exist in the first rollout, so the policy saw its observations as they are. Learning from these fails if
                # they are far from 1, so they are normalised by their own moments. PPO's ratios stay right: log-probabilities are those
                # of the policy that acted.
                for learner in self.learners:
                    learner.normalize_by(trajectory.groups[learner.name])
        metrics = self.device_work.learn(trajectory)
        self._count_update()
        return metrics

    def schedule(self, progress: float) -> None:
        """Set learning rates and coefficients: the part of an update that a CUDA graph cannot hold."""
        for learner in self.learners:
            learner.schedule(progress)

    def learn(self, trajectory: Trajectory) -> dict[str, torch.Tensor]:
        """Learn from a rollout; nothing in it depends on numbers read from the device, so that a CUDA graph can hold it."""
        metrics: dict[str, dict[str, torch.Tensor]] = {}
        for learner in self.learners:
            batch = learner.batch(trajectory)
            found = self.learn_group(learner, batch) | learner.report(batch)
            metrics[learner.name] = {f"loss/{name}": value for name, value in found.items()}
            # After learning: the policy acted by the former statistics, and the ratios of this update need the same.
            learner.observe(batch.samples().rows().obs)
        return by_group(metrics)

    def networks(self) -> dict[str, Network]:
        return {learner.name: learner.policy.kernel_network() for learner in self.learners}

    @classmethod
    @abstractmethod
    def loss(cls, config: C) -> RowLoss:
        """Return the loss of a row."""

    @abstractmethod
    def learn_group(self, learner: Learner[C], batch: Batch) -> dict[str, torch.Tensor]:
        """Train the policy of one group on a rollout, with `learner.gradient` and `learner.step`; return its metrics, [] each.

        Nothing in it may depend on numbers that the host reads from the device, for a CUDA graph repeats it.
        """

    def diagnostics(self, trajectory: Trajectory) -> dict[str, torch.Tensor]:
        """Return metrics of a rollout, [] each, that are too slow for every update; called when metrics are logged, it changes nothing.

        `obs/clipped_share` is the share of observed numbers that are clipped, `obs/constant_share` that of features that have never varied,
        `reward/largest` the size of the largest normalised reward, of several processes those of the first. Of several groups each has its
        own, such as `obs/GROUP/clipped_share`.
        """
        return by_group({learner.name: learner.diagnostics(trajectory) for learner in self.learners})

    def policy_state(self) -> State:
        """Return the networks and the statistics of observations, by the names of `state`."""
        return {f"{learner.name}/{name}": tensor for learner in self.learners for name, tensor in learner.policy.tensors().items()}

    def state(self) -> State:
        tensors = {"updates": self.updates}
        for learner in self.learners:
            tensors |= {f"{learner.name}/{name}": tensor for name, tensor in learner.tensors().items()}
        return tensors


def flops_per_row(weights: int, passes: int) -> float:
    """Return the operations of an actor's step: 2 for each weight to act, 6 in each pass of an update, forward and backward."""
    return 2.0 * weights + 6.0 * weights * passes


def _linear(start: float, end: float | None, progress: float) -> float:
    return start if end is None else start + (end - start) * min(max(progress, 0.0), 1.0)
