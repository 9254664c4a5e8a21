"""What A2C and PPO share: a learner for every group, from the rollout to rows with advantages, and one gradient step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from warprun.environment import Group
from warprun.errors import UserError
from warprun.kernels.mlp import Network
from warprun.learning import distributions
from warprun.learning.cpu.gradient import FusedGradient, Rows
from warprun.learning.cpu.returns import FusedReturns
from warprun.learning.metrics import by_group
from warprun.learning.normalization import RewardNormalizer
from warprun.learning.optimizers import OPTIMIZERS, clip_norm
from warprun.learning.policy import Policy
from warprun.learning.returns import Spread, explained_variance, gae, nstep
from warprun.learning.setting_checks import check, check_groups
from warprun.learning.settings import OnPolicyConfig, group_config
from warprun.learning.slices import Slices
from warprun.seeds import derived_seed
from warprun.simulation.trajectory import Trajectory

C = TypeVar("C", bound=OnPolicyConfig)
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "Batch"], tuple[torch.Tensor, ...]]
"""loss(log_prob, entropy, value, rows) -> means over the rows, the loss first."""
RETURNS = "/reward/returns"
"""Names of the tensors whose shape [N, A] an agent learns from its first rollout."""


class Batch(NamedTuple):
    """Rows of a rollout, R = T*N*A of them or some; features F, mask entries M, components C."""

    obs: torch.Tensor
    """[R, F]."""
    mask: torch.Tensor | None
    """[R, M] bool."""
    action: torch.Tensor
    """[R, C]."""
    log_prob: torch.Tensor
    """[R]: of `action` under the policy of the rollout."""
    value: torch.Tensor
    """[R]: by the network of the rollout."""
    advantage: torch.Tensor
    """[R]."""
    returns: torch.Tensor
    """[R]: what the value should be."""
    spread: Spread
    """Of the whole rollout's advantages and returns."""

    def rows(self, index: slice | torch.Tensor) -> Batch:
        """Return the rows that `index` picks: views for a slice, copies for a tensor of row numbers."""
        return Batch(*(None if tensor is None else tensor[index] for tensor in self[:-1]), self.spread)  # type: ignore[arg-type, call-arg]


class Slopes(NamedTuple):
    """What the fused gradient needs to know of a loss."""

    function: Callable[..., Any]
    """slopes(log_prob, value, old_log_prob, old_value, advantage, returns, coefficients) of one row, as `a2c.a2c_slopes`."""
    coefficients: Any
    """A NamedTuple of float32 numbers."""


class Fused(NamedTuple):
    """The kernels of one policy (CPU)."""

    returns: FusedReturns
    gradient: FusedGradient | None
    """None where torch computes gradients."""


class Learner(Generic[C]):
    """One group's policy and everything that trains it."""

    def __init__(self, config: C, group: Group, device: torch.device, slices: Slices, seed: int) -> None:
        self.config = config
        self.name = group.name
        self.seed = seed
        self.policy = Policy(group, config.network, config.normalize_obs, device, slices, derived_seed(seed, "network"))
        self.optimizer = OPTIMIZERS[config.optimizer.name](self.policy.parameters, config.optimizer)
        self.reward_normalizer = RewardNormalizer(config.gamma, device) if config.normalize_reward else None
        # Tensors, so that a captured update reads what the schedule last wrote.
        self.learning_rate = torch.zeros((), dtype=torch.float64, device=device)
        self.entropy_coef = torch.zeros((), device=device)
        self.fused: Fused | None = None
        """The kernels that take the place of torch; None where it computes everything."""
        self.average: Callable[[torch.Tensor], object] = _alone
        """Averages a tensor in place over all processes that train together."""

    def schedule(self, progress: float) -> None:
        """Set what changes over the run to its value at `progress`, 0 to 1."""
        config = self.config
        self.learning_rate.fill_(_linear(config.learning_rate, config.learning_rate_end, progress))
        self.entropy_coef.fill_(_linear(config.entropy_coef, config.entropy_coef_end, progress))

    def batch(self, trajectory: Trajectory) -> Batch:
        """Return the rows of `trajectory` with their advantages and returns."""
        group, config = trajectory.groups[self.name], self.config
        terminated, truncated = trajectory.terminated[..., None], trajectory.truncated[..., None]
        reward = self.reward_normalizer(group.reward, terminated, truncated) if self.reward_normalizer else group.reward
        if config.advantage == "gae" and self.fused:
            advantage, returns, spread = self.fused.returns.gae(trajectory, self.name, reward, config.gamma, config.gae_lambda)
        else:
            following = self.next_value(trajectory)
            if config.advantage == "gae":
                advantage, returns = gae(reward, group.value, following, terminated, truncated, config.gamma, config.gae_lambda)
            else:
                returns = nstep(reward, following, terminated, truncated, config.gamma, config.n_step)
                advantage = returns - group.value
            spread = Spread.of(advantage, returns)
        mask = None if group.mask is None else group.mask[:-1].flatten(0, 2)
        obs, action = group.obs[:-1].flatten(0, 2), group.action.flatten(0, 2)
        log_prob, value = group.log_prob.flatten(), group.value.flatten()
        return Batch(obs, mask, action, log_prob, value, advantage.flatten(), returns.flatten(), spread)

    def next_value(self, trajectory: Trajectory) -> torch.Tensor:
        """Return V of the observation that each step led to, [T, N, A]: where truncated the final one, where terminated 0."""
        if self.fused:
            return self.fused.returns.next_value(trajectory, self.name)
        group, values = trajectory.groups[self.name], self.policy.values
        actors = group.value.shape[1:]
        bootstrap = values(group.obs[-1].flatten(0, 1)).view(1, *actors)
        following = torch.cat((group.value[1:], bootstrap))
        # On a GPU the host would have to wait for the answer, and the other way round the values are cheap.
        if trajectory.truncated.device.type != "cpu" or trajectory.truncated.any():
            final_value = values(group.final_obs.flatten(0, 2)).view(-1, *actors)
            slot = trajectory.final_slot()[..., None].expand(-1, *actors)
            following = torch.where(trajectory.truncated[..., None], final_value.gather(0, slot), following)
        return following.masked_fill_(trajectory.terminated[..., None], 0.0)

    def gradient(
        self, loss: Loss, batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of `loss` over the rows of `batch` that `order` picks (None: all), and the means of its terms, [K].

        `advantage` [B] is that of the picked rows, as the loss shall see it.
        """
        if self.fused and self.fused.gradient:
            gradient, means = self._fused_gradient(self.fused.gradient, batch, advantage, order)
        else:

            def terms(part: slice) -> tuple[torch.Tensor, ...]:
                rows = batch.rows(part if order is None else order[part])._replace(advantage=advantage[part])
                output, value = self.policy(rows.obs)
                log_prob, entropy = distributions.evaluate(self.policy.space, output, rows.mask, rows.action)
                return loss(log_prob, entropy, value, rows)

            gradient, means = self.policy.slices.gradient(terms, self.policy.leaves, len(advantage))
        self.average(gradient)
        return gradient, means

    def fuse(self, network: Network, slopes: Slopes | None, threads: int) -> None:
        """Compute values and advantages of `network`, the policy's, by the fused kernels from now on, and, given slopes, gradients."""
        gradient = FusedGradient(network, self.policy.space, *slopes, threads) if slopes else None
        self.fused = Fused(FusedReturns(network, threads), gradient)

    def _fused_gradient(
        self, fused: FusedGradient, batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.zeros((0, 0), dtype=torch.bool) if batch.mask is None else batch.mask
        everything = torch.zeros(0, dtype=torch.int64) if order is None else order
        tensors = (everything, batch.obs, mask, batch.action, batch.log_prob, batch.value, advantage, batch.returns)
        entropy_coef = float(self.entropy_coef)
        gradient, terms = fused.gradient(Rows(*(t.contiguous().numpy() for t in tensors)), entropy_coef)
        policy, value, entropy = terms[:3]
        loss = policy + self.config.value_coef * value - entropy_coef * entropy
        return gradient, torch.cat((loss[None], terms))

    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        """Move the parameters against `gradient` [P], clipped in place; return the norm it had, []."""
        norm = clip_norm(gradient, self.config.max_grad_norm)
        self.optimizer.step(self.policy.parameters, gradient, self.learning_rate)
        return norm

    def report(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the metrics that every update has."""
        return {
            "explained_variance": explained_variance(batch.spread),
            "learning_rate": self.learning_rate.clone(),
        }

    def diagnostics(self, trajectory: Trajectory) -> dict[str, torch.Tensor]:
        """Return what is worth knowing of a rollout where metrics are logged, [] each, and too slow for every update."""
        group, found = trajectory.groups[self.name], {}
        if self.policy.normalizer:
            found["obs/clipped_share"] = self.policy.normalizer.clipped_share(group.obs[:-1])
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


class OnPolicyAgent(Generic[C]):
    """Everything of an agent but how it learns from a batch: one policy for each group, each trained on its own."""

    exploration = None
    """Policies give distributions, from which actions are sampled."""

    def __init__(self, config: C, groups: tuple[Group, ...], device: torch.device, threads: int, seed: int) -> None:
        check(config)
        check_groups(config, [group.name for group in groups])
        slices = Slices(device, threads)
        self.learners = [
            Learner(group_config(config, group.name), group, device, slices, derived_seed(seed, "group", i))
            for i, group in enumerate(groups)
        ]
        self.threads = threads
        self.updates = torch.zeros((), dtype=torch.int64, device=device)
        """Updates so far."""
        self.normalizes = False
        """Whether statistics of observations are there, those of the first rollout at least."""
        self._learn: Callable[[Trajectory], dict[str, torch.Tensor]] = self.learn

    @property
    def n_parameters(self) -> int:
        """Numbers that are trained."""
        return sum(learner.policy.parameters.numel() for learner in self.learners)

    def act(self, trajectory: Trajectory, t: int) -> None:
        """Write every group's `policy_output` and `value[t]` for the observations of step `t`."""
        for learner in self.learners:
            group = trajectory.groups[learner.name]
            # Views, never copies: what is written must arrive in the trajectory.
            outputs, features = group.policy_output.shape[-1], group.obs.shape[-1]
            learner.policy.act(group.obs[t].view(-1, features), group.policy_output.view(-1, outputs), group.value[t].view(-1))

    def update(self, trajectory: Trajectory, progress: float) -> dict[str, torch.Tensor]:
        """Learn from a rollout at `progress`, 0 to 1, of the run; return metrics, [] each, that hold until the next update."""
        self.schedule(progress)
        if not self.normalizes:
            # The first rollout was taken without statistics, its observations as they are. To learn from them so could not work where they
            # are far from 1. Its log-probabilities are those of the policy that took it, so the ratios of PPO are right none the less.
            for learner in self.learners:
                learner.policy.normalize_by(trajectory.groups[learner.name].obs[:-1].flatten(0, 2))
            self.normalizes = True
        return self._learn(trajectory)

    def capture(self, captured: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Let `captured(work)` stand for the work on the device that is the same in every update: a CUDA graph of it."""
        self._learn = captured(self.learn)

    def schedule(self, progress: float) -> None:
        """Set learning rates and coefficients: the part of an update that a CUDA graph cannot hold."""
        for learner in self.learners:
            learner.schedule(progress)

    def learn(self, trajectory: Trajectory) -> dict[str, torch.Tensor]:
        """Learn from a rollout; nothing in it depends on numbers read from the device, so that a CUDA graph can hold it."""
        metrics: dict[str, torch.Tensor] = {}
        for learner in self.learners:
            batch = learner.batch(trajectory)
            prefix = "loss" if len(self.learners) == 1 else f"loss/{learner.name}"
            found = self.learn_group(learner, batch) | learner.report(batch)
            metrics |= {f"{prefix}/{name}": value for name, value in found.items()}
            # Only now: the policy of the rollout, and so the ratios of this update, belong to the statistics before it.
            learner.policy.observe(batch.obs)
        self.updates += 1
        return metrics

    def fuse(self) -> dict[str, Network] | None:
        """Use the fused kernels if every group's network allows it; return the networks for the engine, else None.

        Gradients of tensors on a GPU stay with torch.
        """
        networks: dict[str, Network] = {}
        for learner in self.learners:
            network = learner.policy.fused()
            if network is None:
                return None
            networks[learner.name] = network
        for learner in self.learners:
            if learner.fused is None and self.updates.device.type == "cpu":
                learner.fuse(networks[learner.name], self.slopes(learner.config), self.threads)
        return networks

    @property
    def updates_are_fused(self) -> bool:
        """Whether gradients come from the fused kernels, for every group."""
        return all(learner.fused and learner.fused.gradient for learner in self.learners)

    def slopes(self, config: C) -> Slopes | None:
        """Return the derivatives of the loss, for the fused gradient; None: torch computes the gradient from the loss."""
        return None

    def learn_group(self, learner: Learner[C], batch: Batch) -> dict[str, torch.Tensor]:
        """Train the policy of one group on the rows of a rollout; return its metrics."""
        raise NotImplementedError

    def diagnostics(self, trajectory: Trajectory) -> dict[str, torch.Tensor]:
        """Return what is worth knowing of the last rollout where metrics are logged, [] each; it changes nothing.

        `obs/clipped_share` is the share of observed numbers that are clipped, `reward/largest` the size of the largest normalised reward;
        of several groups each has its own, `obs/GROUP/clipped_share`.
        """
        return by_group({learner.name: learner.diagnostics(trajectory) for learner in self.learners})

    def state(self) -> dict[str, torch.Tensor]:
        """Return everything that a checkpoint needs, by name: the tensors themselves, not copies."""
        tensors = {"updates": self.updates}
        for learner in self.learners:
            tensors |= {f"{learner.name}/{name}": tensor for name, tensor in learner.tensors().items()}
        return tensors

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Take over what `state()` of an agent with the same settings returned."""
        own = self.state()
        if own.keys() != state.keys():
            raise UserError(f"the checkpoint is of an agent with other settings: {sorted(own.keys() ^ state.keys())[0]} is in one only")
        for name, tensor in own.items():
            if tensor.shape != state[name].shape and not name.endswith(RETURNS):
                raise UserError(
                    f"the checkpoint is of another agent: {name} has shape {tuple(state[name].shape)} in it, here {tuple(tensor.shape)}"
                )
        for name, tensor in own.items():
            if name.endswith(RETURNS):
                tensor.resize_(state[name].shape)
            tensor.copy_(state[name])
        self.normalizes = bool(self.updates > 0)


def _linear(start: float, end: float | None, progress: float) -> float:
    return start if end is None else start + (end - start) * min(max(progress, 0.0), 1.0)


def _alone(tensor: torch.Tensor) -> None:
    """Do nothing: one process is its own average."""
