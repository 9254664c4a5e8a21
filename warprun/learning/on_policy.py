"""What on-policy agents share: a `Learner` for each group, which turns rollouts into batches with advantages and takes gradient steps.

An update runs `OnPolicyAgent.update` -> `learn` -> for each group `Learner.batch`, `learn_group` of the algorithm, which calls
`Learner.gradient` and `Learner.step`, and `Policy.observe`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch

from warprun.kernels.mlp import Network
from warprun.learning import distributions
from warprun.learning.capture import captured
from warprun.learning.communicator import mean_
from warprun.learning.gradients import Derivatives, Fused, GradientKernels, Rows
from warprun.learning.interfaces import Context
from warprun.learning.kernels.cpu.acting import FusedActing
from warprun.learning.kernels.cpu.gradient import FusedGradient
from warprun.learning.kernels.cpu.optimizer import FusedAdam
from warprun.learning.kernels.cpu.returns import FusedReturns
from warprun.learning.kernels.cpu.statistics import FusedObservations, FusedRewards
from warprun.learning.metrics import by_group
from warprun.learning.normalization import ObservationNormalizer, RewardNormalizer
from warprun.learning.optimizers import OPTIMIZERS, Adam, clip_norm
from warprun.learning.policy import Policy
from warprun.learning.returns import (
    TARGETS,
    Estimate,
    Spread,
    Steps,
    explained_variance,
    mean_and_variance,
    normalize_advantage,
    variance_over_processes,
)
from warprun.learning.settings import OnPolicyConfig, check_groups, check_settings, group_config
from warprun.learning.slices import Slices
from warprun.simulation.trajectory import GroupTrajectory, Trajectory, rows_of
from warprun.spec import GroupSpec, Spec
from warprun.state import State, derived_seed

C = TypeVar("C", bound=OnPolicyConfig)
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "Batch"], tuple[torch.Tensor, ...]]
"""loss(log_prob, entropy, value, rows) -> means over the rows, the loss first."""


class Past(NamedTuple):
    """What the steps of a batch follow, for a policy with memory."""

    carry: torch.Tensor
    """[B, H]: what the policy of the rollout remembered before the first step."""
    begins: torch.Tensor
    """[T, B] bool: an episode begins with this step."""


@dataclass(frozen=True)
class Batch:
    """A rollout to learn from: T steps of B = N*A actors; features F, mask entries M, components C.

    `samples` makes it what minibatches are made of: rows [R, ...] in the place of [T, B, ...], R = T*B unless actors have left; with memory
    sequences [B, T, ...].
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
    """What the network computed for all rows, if it was kept and the network is still the same (`Trajectory.activations`)."""
    step_rows: int | None = None
    """Rows of a step, if the rows are those of whole steps."""
    explained_variance: torch.Tensor | None = None
    """[]: that of the values, if it is already known."""

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

    @cached_property
    def in_order(self) -> Rows:
        """What kernels take of all rows."""
        return _rows(self, self.advantage, None)

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
            explained_variance=self.explained_variance,
        )


class Learner(Generic[C]):
    """One group's policy and everything that trains it."""

    def __init__(self, config: C, group: GroupSpec, context: Context, slices: Slices, seed: int, derivatives: Derivatives | None) -> None:
        """`derivatives` are those of the loss; needed if kernels compute gradients."""
        device, plan = context.device, context.plan
        self.config = config
        self.name = group.name
        self.actors = group.size
        self.leaves = group.leaves
        """Whether actors leave episodes before they end; the statistics of their rewards then stay with torch."""
        self.seed = seed
        self.communicator = context.communicator
        normalizer = ObservationNormalizer(group.observation.size, device, self.communicator) if config.normalize_obs else None
        self.policy = Policy(group, config.network, normalizer, device, slices, derived_seed(seed, "network"))
        self.optimizer = OPTIMIZERS[config.optimizer.name](self.policy.parameters, config.optimizer)
        actors = (context.n_envs, group.size)
        self.reward_normalizer = (
            RewardNormalizer(config.gamma, actors, device, self.communicator, context.sources or 1) if config.normalize_reward else None
        )
        self.target = TARGETS[config.advantage](config)
        """What advantages and returns are computed by."""
        # Tensors, so that a captured update reads what the schedule last wrote.
        self.learning_rate = torch.zeros((), dtype=torch.float64, device=device)
        self.entropy_coef = torch.zeros((), device=device)
        self.fused: Fused | None = None
        """The kernels that take the place of torch; None if torch computes everything."""
        self.act: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None] = self.policy.act
        """act(obs [R, F], policy_output [R, P], value [R]) writes what the policy gives for observations."""
        self.kept = 0
        """Rows of the network, if the gradient takes its activations from the rollout; else 0."""
        self._renormalized = False
        """Whether observations are normalised otherwise than in the rollout that is learned from."""
        self._scheduled: tuple[float, float] | None = None
        """Learning rate and entropy coefficient that were set last."""
        self._batches: WeakKeyDictionary[Trajectory, tuple[Estimate, Batch]] = WeakKeyDictionary()
        """Batches whose tensors are all views, and the estimates that they hold: kernels write the next ones to the same memory."""
        if plan.networks == "kernels" and device.type == "cpu":
            self.fused = self._cpu_kernels(derivatives if plan.gradients == "kernels" else None, context.threads)
            self.act = FusedActing(self.policy.kernel_network(), context.threads)
            if plan.keeps:
                units = self.policy.kernel_network().rows
                self.kept = units if config.kept_activations(group, context.n_envs, units, context.threads) else 0
        elif plan.gradients == "kernels":
            assert derivatives
            self.fused = self._cuda_kernels(derivatives, device)

    def _cpu_kernels(self, derivatives: Derivatives | None, threads: int) -> Fused:
        """Return the kernels for a CPU, those of gradients if there are `derivatives`, and let another process compile them."""
        network = self.policy.kernel_network()
        returns = FusedReturns(network, threads)
        returns.compile_ahead(self.target)
        fused = Fused(returns)
        if derivatives:
            gradient = FusedGradient(network, self.policy.space, derivatives, self.config.value_coef, threads)
            gradient.compile_ahead()
            fused = fused._replace(gradient=gradient)
        if derivatives and isinstance(self.optimizer, Adam):
            optimizer = FusedAdam(self.optimizer, self.policy.parameters, self.learning_rate, self.config.max_grad_norm)
            optimizer.compile_ahead()
            fused = fused._replace(step=optimizer.step)
        if self.policy.normalizer:
            observations = FusedObservations(self.policy.normalizer, threads)
            observations.compile_ahead()
            fused = fused._replace(observe=observations)
        if self.reward_normalizer and not self.leaves:
            rewards = FusedRewards(self.reward_normalizer, threads)
            rewards.compile_ahead()
            fused = fused._replace(normalize_reward=rewards)
        return fused

    def _cuda_kernels(self, derivatives: Derivatives, device: torch.device) -> Fused:
        """Return the kernels for a GPU."""
        # Imports Numba's CUDA part, which may be absent where there is no GPU.
        from warprun.learning.kernels.cuda.gradient import CudaGradient
        from warprun.learning.kernels.cuda.optimizer import CudaAdam
        from warprun.learning.kernels.cuda.returns import CudaReturns
        from warprun.learning.kernels.cuda.statistics import THREADS, CudaRewards, observations

        network, space = self.policy.kernel_network(), self.policy.space
        fused = Fused(
            CudaReturns(network, space.outputs, device), CudaGradient(network, space, derivatives, self.config.value_coef, device)
        )
        if isinstance(self.optimizer, Adam):
            optimizer = CudaAdam(self.optimizer, self.policy.parameters, self.learning_rate, self.config.max_grad_norm)
            fused = fused._replace(step=optimizer.step)
        # Statistics of several processes or of several sources of rollouts stay with torch.
        if self.communicator.size > 1:
            return fused
        observed, rewarded = self.policy.normalizer, self.reward_normalizer
        if observed and len(observed.shift) <= THREADS:
            fused = fused._replace(observe=observations(observed).observe)
        if rewarded and rewarded.sources == 1 and not self.leaves:
            fused = fused._replace(normalize_reward=CudaRewards(rewarded))
        return fused

    def schedule(self, progress: float) -> None:
        """Set learning rate and entropy coefficient to their values at `progress`, 0 to 1, of the run."""
        config = self.config
        wanted = (
            _linear(config.learning_rate, config.learning_rate_end, progress),
            _linear(config.entropy_coef, config.entropy_coef_end, progress),
        )
        if wanted != self._scheduled:
            self._scheduled = wanted
            self.learning_rate.fill_(wanted[0])
            self.entropy_coef.fill_(wanted[1])

    def batch(self, trajectory: Trajectory) -> Batch:
        """Return `trajectory` with its advantages and returns; the next call for this trajectory may overwrite them."""
        group = trajectory.groups[self.name]
        reward = self._reward(trajectory)
        log_prob = self.judge(trajectory) if self.target.uses_ratio else group.log_prob
        log_ratio = log_prob - group.log_prob if self.target.uses_ratio else None
        alive = None if group.alive is None else group.alive[:-1]
        if alive is not None:
            # Actors that have left are in a state of value 0 in which nothing happens, so targets need not know of them.
            group.value.masked_fill_(~alive, 0.0)
        if self.fused:
            found = self.fused.returns.estimate(self.target, trajectory, self.name, reward, log_ratio)
        else:
            ends = trajectory.ends(self.name)
            found = Estimate.of(group, *self.target(Steps(reward, group.value, self.next_value(trajectory), *ends, log_ratio)))
        # In the same estimate numbers have changed, the views of it have not.
        former = self._batches.get(trajectory)
        if former and former[0] is found:
            return former[1]
        spread = found.spread.over_processes(self.communicator, group.rows)
        mask = None if group.mask is None else group.mask[:-1]
        batch = Batch(group.obs[:-1], mask, group.action, log_prob, group.value, found.advantage, found.returns, spread, alive=alive)
        batch = replace(batch, explained_variance=found.explained_variance if spread is found.spread else None)
        batch = batch.each(lambda tensor: tensor.flatten(1, 2))  # environments and actors to one dimension
        if self.kept and not self._renormalized:
            batch = replace(batch, activations=trajectory.activations.get(self.name))
        if past := self.past(trajectory):
            return replace(batch, past=past)
        views = all(tensor is None or tensor.is_contiguous() for tensor in (group.obs, group.mask, group.action, log_prob, group.value))
        lasting = self.fused and views and alive is None and spread is found.spread and not self._renormalized
        if lasting:
            self._batches[trajectory] = found, batch
        else:
            self._batches.pop(trajectory, None)
        return batch

    def past(self, trajectory: Trajectory) -> Past | None:
        """Return what the steps of a rollout follow; None if the policy has no memory."""
        if not self.policy.carry:
            return None
        ended = trajectory.terminated | trajectory.truncated
        begins = torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))  # before row 0 the carry is that of the episode that goes on
        return Past(trajectory.carries[self.name].first.flatten(0, 1), begins.repeat_interleave(self.actors, 1))

    def _reward(self, trajectory: Trajectory) -> torch.Tensor:
        """Return the rewards in the units of the values, [T, N, A]."""
        if self.fused and self.fused.normalize_reward:
            return self.fused.normalize_reward(trajectory, self.name)
        group = trajectory.groups[self.name]
        if not self.reward_normalizer:
            return group.reward
        return self.reward_normalizer(group.reward, *trajectory.ends(self.name), trajectory, group)

    def judge(self, trajectory: Trajectory) -> torch.Tensor:
        """Return the log-probabilities of the actions, [T, N, A], by the policy as it is now, and replace the values by its own."""
        group, past = trajectory.groups[self.name], self.past(trajectory)
        obs, action = group.obs[:-1].flatten(0, 2), group.action.flatten(0, 2)
        mask = None if group.mask is None else group.mask[:-1].flatten(0, 2)
        policy_output = obs.new_empty(len(obs), group.policy_output.shape[-1])
        if past:
            self.policy.act_along(group.obs[:-1].flatten(1, 2), *past, policy_output, group.value.view(-1))
        else:
            self.act(obs, policy_output, group.value.view(-1))
        return distributions.evaluate(self.policy.space, policy_output, mask, action)[0].view_as(group.log_prob)

    def mean_and_variance(self, advantage: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and the unbiased variance, [] each, of a minibatch's advantages in all processes."""
        return variance_over_processes(self.communicator, *mean_and_variance(advantage.flatten()), advantage.numel())

    def next_value(self, trajectory: Trajectory) -> torch.Tensor:
        """Return V of the observation that each step led to, [T, N, A]: where truncated the final one, where terminated 0."""
        if self.fused:
            return self.fused.returns.next_value(trajectory, self.name)
        group, values, carry = trajectory.groups[self.name], self.policy.values, trajectory.carries.get(self.name)
        actors = group.value.shape[1:]
        before = None if carry is None else trajectory.carry_before(self.name, trajectory.horizon).flatten(0, 1)
        bootstrap = values(group.obs[-1].flatten(0, 1), before).view(1, *actors)
        following = torch.cat((group.value[1:], bootstrap))
        # Only the CPU skips this if nothing is truncated: a GPU would make the host wait for the answer, and computes the values quickly.
        if trajectory.truncated.device.type != "cpu" or trajectory.truncated.any():
            slot = trajectory.final_slot()[..., None].expand(-1, *actors)
            used = int(slot.max()) + 1 if slot.device.type == "cpu" else len(group.final_obs)
            at_end = None if carry is None else trajectory.carry_at_truncations(self.name, used).flatten(0, 2)
            final_value = values(group.final_obs[:used].flatten(0, 2), at_end).view(-1, *actors)
            following = torch.where(trajectory.truncated[..., None], final_value.gather(0, slot), following)
        return following.masked_fill_(trajectory.ends(self.name)[0], 0.0)

    def gradient(
        self,
        loss: Loss,
        batch: Batch,
        advantage: torch.Tensor,
        order: torch.Tensor | None = None,
        moments: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of `loss`, and the means of its terms, [K], over the rows of all processes.

        `batch` are `Batch.samples`, `order` [B] picks some of them (None: all), and `advantage` [B], of sequences [B, T], is what the loss
        takes as theirs, normalized by `moments`, mean and variance, if given. The next call may overwrite the gradient, without `order`
        also the means.
        """
        if self.fused and self.fused.gradient:
            gradient, means = self._fused_gradient(self.fused.gradient, batch, advantage, order, moments)
        else:
            advantage = normalize_advantage(advantage, *moments) if moments else advantage

            def terms(part: slice) -> tuple[torch.Tensor, ...]:
                samples = replace(batch.pick(part if order is None else order[part]), advantage=advantage[part])
                output, value = self.policy.along(samples.obs, *samples.past) if samples.past else self.policy(samples.obs)
                rows = samples.rows()
                log_prob, entropy = distributions.evaluate(self.policy.space, output, rows.mask, rows.action)
                return loss(log_prob, entropy, value, rows)

            gradient, means = self.policy.gradient(terms, len(advantage), advantage[0].numel())
        mean_(self.communicator, len(advantage), gradient, means)
        return gradient, means

    def _fused_gradient(
        self,
        kernel: GradientKernels,
        batch: Batch,
        advantage: torch.Tensor,
        order: torch.Tensor | None,
        moments: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if order is None and advantage is batch.advantage:
            return kernel.gradient(batch.in_order, self.entropy_coef, moments)
        gradient, means = kernel.gradient(_rows(batch, advantage, order), self.entropy_coef, moments)
        return gradient, means.clone()

    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        """Move the parameters against `gradient` [P], clipped, perhaps in place; return the norm it had, []."""
        if self.fused and self.fused.step:
            return self.fused.step(gradient)
        norm = clip_norm(gradient, self.config.max_grad_norm)
        self.optimizer.step(self.policy.parameters, gradient, self.learning_rate)
        return norm

    def normalize_by(self, group: GroupTrajectory) -> None:
        """Normalise the observations of a rollout by their own moments, although the policy saw them as they are."""
        self._renormalized = True
        self.policy.normalize_by(*group.of_alive(group.obs[:-1]))

    def observe(self, obs: torch.Tensor) -> None:
        """Add `obs` [B, F] to the statistics of observations, if there are any, and normalise by them from now on."""
        self._renormalized = False
        if self.fused and self.fused.observe:
            self.fused.observe(obs)
        else:
            self.policy.observe(obs)

    def report(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the metrics that every update has."""
        explained = batch.explained_variance
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
        return tensors


class DeviceWork(NamedTuple):
    """What the device does in every update, with nothing of it decided by the host."""

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
        check_settings(config)
        check_groups(config, [group.name for group in spec.groups])
        slices = Slices(context.device, context.threads)
        self.learners: list[Learner[C]] = []
        for i, group in enumerate(spec.groups):
            own = group_config(config, group.name)
            self.learners.append(Learner(own, group, context, slices, derived_seed(context.seed, "group", i), self.derivatives(own)))
        self.carry = {learner.name: learner.policy.carry for learner in self.learners}
        self.kept = {learner.name: learner.kept for learner in self.learners if learner.kept}
        self.updates = torch.zeros((), dtype=torch.int64, device=context.device)
        """Updates so far: a tensor, which a captured update reads."""
        self._has_updated = False
        """Whether `update` was called in this process."""
        self.device_work = DeviceWork(learn=captured(self.learn, context, type(self)))

    @property
    def n_parameters(self) -> int:
        """Numbers that are trained."""
        return sum(learner.policy.parameters.numel() for learner in self.learners)

    @property
    def learning_starts(self) -> int:
        """Environment steps before the first gradient step: none."""
        return 0

    def flops_per_env_step(self) -> float:
        """Return the floating-point operations of the matrix products of an environment step of all actors, with training."""
        return sum(flops_per_row(learner.policy.parameters.numel(), learner.config.passes()) * learner.actors for learner in self.learners)

    def act(self, trajectory: Trajectory, row: int) -> None:
        """Write every group's `policy_output` and `value[row]` for the observations of row `row`."""
        for learner in self.learners:
            group = trajectory.groups[learner.name]
            # Views, never copies: what is written must arrive in the trajectory.
            outputs, features = group.policy_output.shape[-1], group.obs.shape[-1]
            rows = group.obs[row].view(-1, features), group.policy_output.view(-1, outputs), group.value[row].view(-1)
            if learner.policy.carry:
                before, after = trajectory.carry_before(learner.name, row), trajectory.carries[learner.name].after[row]
                learner.policy.act_with_memory(*rows, before.flatten(0, 1), after.view(-1, learner.policy.carry))
            else:
                learner.act(*rows)

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
        self.updates += 1
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
        """Return each group's acting network for the simulator's kernels."""
        return {learner.name: learner.policy.kernel_network() for learner in self.learners}

    @classmethod
    def derivatives(cls, config: C) -> Derivatives | None:
        """Return the derivatives of the loss, for the fused gradient; None if `OnPolicyConfig.no_kernel_gradients` gives a reason."""
        return None

    @abstractmethod
    def learn_group(self, learner: Learner[C], batch: Batch) -> dict[str, torch.Tensor]:
        """Train the policy of one group on a rollout, with `learner.gradient` and `learner.step`; return its metrics, [] each.

        Nothing in it may depend on numbers that the host reads from the device, for a CUDA graph repeats it.
        """

    def diagnostics(self, trajectory: Trajectory) -> dict[str, torch.Tensor]:
        """Return metrics of a rollout, [] each, that are too slow for every update; called when metrics are logged, it changes nothing.

        `obs/clipped_share` is the share of observed numbers that are clipped, `reward/largest` the size of the largest normalised reward,
        of several processes those of the first. Of several groups each has its own, such as `obs/GROUP/clipped_share`.
        """
        return by_group({learner.name: learner.diagnostics(trajectory) for learner in self.learners})

    def policy_state(self) -> State:
        """Return the networks and the statistics of observations, by the names of `state`."""
        return {f"{learner.name}/{name}": tensor for learner in self.learners for name, tensor in learner.policy.tensors().items()}

    def state(self) -> State:
        """Return what a checkpoint holds, by name: the live tensors."""
        tensors = {"updates": self.updates}
        for learner in self.learners:
            tensors |= {f"{learner.name}/{name}": tensor for name, tensor in learner.tensors().items()}
        return tensors


def _rows(batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None) -> Rows:
    """Return what kernels take of the rows of a batch: the rows `order`, or all."""
    mask = batch.obs.new_zeros((0, 0), dtype=torch.bool) if batch.mask is None else batch.mask
    everything = batch.obs.new_zeros(0, dtype=torch.int64) if order is None else order
    whole = order is None
    kept = batch.activations if whole and batch.activations is not None else batch.obs.new_zeros((0, 0, 0, 0))
    tensors = (everything, batch.obs, mask, batch.action, batch.log_prob, batch.value, advantage, batch.returns, kept)
    step_rows = batch.step_rows if whole and batch.step_rows else len(advantage)
    return Rows._make([*(tensor.contiguous() for tensor in tensors), step_rows])


def flops_per_row(weights: int, passes: int) -> float:
    """Return the operations of an actor's step: 2 for each weight to act, 6 in each pass of an update, forward and backward."""
    return 2.0 * weights + 6.0 * weights * passes


def _linear(start: float, end: float | None, progress: float) -> float:
    return start if end is None else start + (end - start) * min(max(progress, 0.0), 1.0)
