"""The common part of off-policy agents: for every group a learner, which stores rollouts in replay memory and takes gradient steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, cast

import torch

from warprun.kernels.mlp import Network
from warprun.learning.capture import captured
from warprun.learning.critics import ActingNetwork
from warprun.learning.descent import AnyOptimized, DeviceScalar, Due, Taken, Terms, Trained
from warprun.learning.interfaces import Context, Metrics, by_group, own_seed
from warprun.learning.kernels import choose
from warprun.learning.kernels.layers import fused_layers
from warprun.learning.kernels.tile_loss import MeanLoss, TileLoss
from warprun.learning.normalization import observation_normalizer
from warprun.learning.replay import TransitionBatch
from warprun.learning.sequences import History, Sequences
from warprun.learning.settings.agent import group_config
from warprun.learning.settings.off_policy import OffPolicyConfig
from warprun.learning.slices import use_one_torch_thread
from warprun.simulation.exploration import Exploration
from warprun.simulation.trajectory import Trajectory
from warprun.spec import GroupSpec, Spec
from warprun.state import Counter, State, derived_seed

C = TypeVar("C", bound=OffPolicyConfig)
P = ParamSpec("P")


class DeviceWork(NamedTuple):
    """The work of a learner that the device repeats: all numbers that change between repetitions are in tensors."""

    store: Callable[[Trajectory], None]
    learn: Callable[[Due], Metrics]


class OffPolicyLearner(ABC, Generic[C]):
    """The replay memory and the networks of one group; an algorithm adds networks, losses and exploration.

    An algorithm states a loss twice (`descent`): by torch, and on a tile of transitions, for kernels.
    """

    noise: torch.Tensor
    """[3]: `exploration` after `learning_starts`; on the device, because copying from the host would wait for it."""
    recordable: ClassVar[bool] = False
    """Whether updates on CPU may be recorded (`capture.captured`)."""

    def __init__(self, config: C, group: GroupSpec, context: Context, seed: int, trained: Mapping[str, AnyOptimized]) -> None:
        """`trained`: the networks, by their names in a checkpoint; the first one acts."""
        device = context.device
        self.config = config
        self.name = group.name
        self.prefix = "loss"
        """With which the names of the metrics of updates begin; of several groups each has its own."""
        self.trained = trained
        for each in trained.values():
            choose.recurrence(each.network, context)
            if isinstance(each, Trained):
                choose.recurrence(each.target, context)
        self.normalizer = observation_normalizer(config, group, device, context.communicator)
        self.replay = choose.replay_memory(config, group, context, own_seed(context, seed, "replay"))
        self._steps = choose.GradientSteps(trained.values(), group, config, context)
        self.carry = config.network.carry()
        """Numbers H that the policy remembers of an episode, for each actor; 0: it has no memory."""
        self.sequences = Sequences(self.replay, config) if self.carry else None
        self.exploration = torch.tensor([1.0, 0.0, 1.0], device=device)
        """[3] float32: probability of a random action, standard deviation and decay of the noise (`kernels.sampling.explore_real`)."""
        self._updates = Counter()
        self.number = DeviceScalar(0, device)
        """Number of the gradient step that the device computes, counted from 0."""
        self.learning_rate = config.learning_rate
        """Current learning rate of the value networks."""
        self.device_work = DeviceWork(store=captured(self.store, context, type(self)), learn=captured(self.learn, context, type(self)))

    def descent(
        self,
        trained: AnyOptimized,
        loss: Callable[P, Terms],
        in_kernels: TileLoss | MeanLoss | None = None,
    ) -> Callable[Concatenate[Due, P], Taken]:
        """Return the gradient step of a network on a loss, which the target network follows when it is due.

        `loss` is that of torch, `in_kernels` the same loss for kernels, on CPU and on CUDA; without it torch computes this step. Gradients
        and means are those of all processes.
        """
        return self._steps(trained, loss, in_kernels)

    @property
    def updates(self) -> int:
        """Gradient steps so far."""
        return self._updates.value

    @abstractmethod
    def gradient_step(self, batch: TransitionBatch, due: Due, history: History | None = None) -> tuple[torch.Tensor, Metrics]:
        """Learn from a batch with normalised observations; return the temporal-difference errors [R] and metrics.

        `history`: the sequences that the batch is part of, for networks with memory. The same `due` means the same work
        on the device, so that it can be repeated.
        """

    def explore(self, progress: float) -> None:
        """Set `exploration` for `progress`, 0 to 1, of the run: to `noise`. Called after `learning_starts`."""
        self.exploration.copy_(self.noise)

    @abstractmethod
    def exploration_metrics(self) -> Metrics:
        """Return the current exploration by the names of its settings, without a prefix."""

    def due(self) -> Due:
        """Return what the gradient step does that `updates` counted last."""
        return Due(target=self.updates % self.config.target_update_interval == 0)

    @property
    def acting(self) -> AnyOptimized:
        """The network that acts, with its optimizer."""
        return next(iter(self.trained.values()))

    @property
    def policy(self) -> ActingNetwork:
        """The network that acts, by values [B, n], actions [B, C], or means and log standard deviations [B, 2 C]."""
        return cast(ActingNetwork, self.acting.network)

    def kernel_network(self) -> Network:
        """Return the acting network for fused rollouts."""
        return fused_layers(self.policy.policy_layers(), self.acting.parameters, self.normalizer)

    def act(self, obs: torch.Tensor, carry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `policy` gives for observations [B, F] after `carry` [B, H], and the next carry; only with memory."""
        with torch.no_grad():
            output, carry = self.policy.unroll(self.normalized(obs)[None], carry, torch.zeros_like(obs[None, :, 0], dtype=torch.bool))
            return output[0], carry

    def act_by_torch(self, obs: torch.Tensor, policy_output: torch.Tensor) -> None:
        """Write what `policy` gives for observations [B, F] to the first columns of `policy_output` [B, P]; only without memory."""
        with torch.no_grad():
            output = self.policy(self.normalized(obs))
            policy_output[:, : output.shape[-1]] = output

    def normalized(self, obs: torch.Tensor) -> torch.Tensor:
        """Return observations as the networks get them."""
        return self.normalizer(obs) if self.normalizer else obs

    def add(self, trajectory: Trajectory) -> None:
        """Store a rollout in replay memory and in the statistics of observations."""
        self.replay.advance(trajectory.horizon)
        self.device_work.store(trajectory)

    def store(self, trajectory: Trajectory) -> None:
        """Do the device's part of `add`."""
        group = trajectory.groups[self.name]
        self.replay.store(trajectory, group)
        if self.sequences:
            self.sequences.store(trajectory, self.name)
        if self.normalizer:
            self.normalizer.statistics.update(group.obs[:-1].flatten(0, 2))
            self.normalizer.refresh()

    def update(self) -> Metrics:
        """Take one gradient step; return its metrics, `prefix`/name."""
        self.number.set(self.updates)
        self._updates.value += 1
        return self.device_work.learn(self.due())

    def learn(self, due: Due) -> Metrics:
        """Do the device's part of `update`: draw a batch, take a gradient step, update the priorities of the batch."""
        batch, history = self.sequences.draw(self.number.tensor) if self.sequences else (self.replay.draw(self.number.tensor), None)
        if self.normalizer:
            batch = batch._replace(obs=self.normalizer(batch.obs), next_obs=self.normalizer(batch.next_obs))
            history = history and history._replace(obs=self.normalizer(history.obs))
        error, metrics = self.gradient_step(batch, due, history)
        if self.sequences and history:
            error = self.sequences.errors(error, history)
        if self.config.replay.prioritized:
            self.replay.update_priorities(batch.row, error)
        return {f"{self.prefix}/{name}": value for name, value in metrics.items()}

    def schedule(self, progress: float) -> None:
        """Set learning rates, the exponent of priority weights and exploration for `progress`, 0 to 1, of the run."""
        config = self.config
        if config.learning_rate_end is not None:
            scale = 1.0 + (config.learning_rate_end / config.learning_rate - 1.0) * progress
            self.learning_rate = config.learning_rate * scale
            for trained in self.trained.values():
                trained.scale_learning_rate(scale)
        self.replay.schedule(progress)
        self.explore(progress)

    def diagnostics(self, trajectory: Trajectory) -> Metrics:
        """Return metrics, named kind/name, that are computed only when metrics are logged."""
        found: dict[str, torch.Tensor | float] = {
            "loss/learning_rate": self.learning_rate,
            "loss/gradient_steps": self.updates,
            "replay/size": self.replay.size,
        }
        found |= {f"explore/{name}": value for name, value in self.exploration_metrics().items()}
        if self.normalizer:
            found["obs/clipped_share"] = self.normalizer.clipped_share(trajectory.groups[self.name].obs[:-1])
            found["obs/constant_share"] = self.normalizer.constant_share()
        return found

    def tensors(self) -> State:
        """Return the state by name."""
        tensors = {"exploration": self.exploration, "updates": self._updates.tensor}
        for name, trained in self.trained.items():
            tensors |= {f"{name}/{key}": tensor for key, tensor in trained.tensors().items()}
        if self.normalizer:
            tensors |= {f"obs/{name}": tensor for name, tensor in self.normalizer.tensors().items()}
        if self.sequences:
            tensors["replay/carry"] = self.sequences.carry
        return tensors | {f"replay/{name}": tensor for name, tensor in self.replay.tensors().items()}


class OffPolicyAgent(Generic[C]):
    """An agent with one learner for each group; an algorithm gives `Config`, and `Learner` or `make_learner`."""

    Config: ClassVar[type]
    """Dataclass of its settings."""
    Learner: ClassVar[Callable[..., OffPolicyLearner[Any]]]
    """Called with the arguments of `make_learner`."""

    def __init__(self, config: C, spec: Spec, context: Context) -> None:
        if context.device.type == "cpu":
            use_one_torch_thread()  # batches are small, and waking other threads takes longer
        self.learners = [
            self.make_learner(group_config(config, group.name), group, context, derived_seed(context.seed, "group", i))
            for i, group in enumerate(spec.groups)
        ]
        if len(self.learners) > 1:
            for learner in self.learners:
                learner.prefix = f"loss/{learner.name}"
        self.exploration = Exploration(config.policies, {learner.name: learner.exploration for learner in self.learners})
        self.carry = {learner.name: learner.carry for learner in self.learners}
        self.kept: dict[str, int] = {}
        self._acting = [choose.acting(learner.kernel_network, learner.act_by_torch, context) for learner in self.learners]
        self._env_steps = Counter()
        self._communicator = context.communicator

    @classmethod
    def make_learner(cls, config: C, group: GroupSpec, context: Context, seed: int) -> OffPolicyLearner[Any]:
        """Return the learner of one group; `config` includes the settings of the group."""
        return cls.Learner(config, group, context, seed)

    @property
    def env_steps(self) -> int:
        """Environment steps so far, summed over the environments."""
        return self._env_steps.value

    @property
    def learning_starts(self) -> int:
        """Environment steps before the first gradient step of the last group to begin."""
        return max(learner.config.learning_starts for learner in self.learners)

    def flops_per_env_step(self) -> None:
        """Return None: batches are drawn from replay memory, and their number depends on `utd_ratio`."""
        return None

    def act(self, trajectory: Trajectory, row: int) -> None:
        """Write the values of actions, or the actions, to every group's `policy_output` for the observations of row `row`."""
        for learner, acting in zip(self.learners, self._acting, strict=True):
            group = trajectory.groups[learner.name]
            obs, policy_output = group.obs[row].flatten(0, 1), group.policy_output.view(-1, group.policy_output.shape[-1])
            if not learner.carry:
                acting(obs, policy_output)
                continue
            output, after = learner.act(obs, trajectory.carry_before(learner.name, row).flatten(0, 1))
            policy_output[:, : output.shape[-1]] = output
            trajectory.carries[learner.name].after[row].view(-1, learner.carry).copy_(after)

    def update(self, trajectory: Trajectory, progress: float) -> Metrics:
        """Store a rollout and take the gradient steps that are due at `progress`, 0 to 1, of the run.

        Return the metrics of the last gradient step, none if no step was due.
        """
        self._env_steps.value += trajectory.horizon * self._communicator.envs(trajectory.n_envs)
        metrics: dict[str, torch.Tensor | float] = {}
        for learner in self.learners:
            learner.add(trajectory)
            if self.env_steps < learner.config.learning_starts:
                continue
            learner.schedule(progress)
            # A total instead of steps per update: utd_ratio holds for any number of environments, without rounding.
            total = int((self.env_steps - learner.config.learning_starts) * learner.config.utd_ratio)
            while learner.updates < total:
                metrics |= learner.update()
        return metrics

    def networks(self) -> dict[str, Network]:
        return {learner.name: learner.kernel_network() for learner in self.learners}

    def diagnostics(self, trajectory: Trajectory) -> Metrics:
        """Return metrics that are computed only when metrics are logged; it changes nothing.

        Names are such as `replay/size`, with several groups `replay/GROUP/size`.
        """
        return by_group({learner.name: learner.diagnostics(trajectory) for learner in self.learners})

    def policy_state(self) -> State:
        """Return `state` without replay memory."""
        memories = tuple(f"{learner.name}/replay/" for learner in self.learners)
        return {name: tensor for name, tensor in self.state().items() if not name.startswith(memories)}

    def state(self) -> State:
        tensors = {"env_steps": self._env_steps.tensor}
        for learner in self.learners:
            tensors |= {f"{learner.name}/{name}": tensor for name, tensor in learner.tensors().items()}
        return tensors
