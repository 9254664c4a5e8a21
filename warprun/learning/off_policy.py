"""What DQN, DDPG and TD3 share: a learner for every group, from the rollout to replay and from there to gradient steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import torch

from warprun.environment import Group
from warprun.errors import UserError
from warprun.kernels.mlp import Network
from warprun.learning.critics import Trained
from warprun.learning.host_number import HostNumber
from warprun.learning.metrics import by_group
from warprun.learning.normalization import ObservationNormalizer
from warprun.learning.replay.replay import Replay
from warprun.learning.replay.ring import Transitions
from warprun.learning.setting_checks import check, check_groups
from warprun.learning.settings import OffPolicyConfig, group_config
from warprun.learning.slices import Slices
from warprun.seeds import derived_seed
from warprun.simulation.trajectory import Trajectory

C = TypeVar("C", bound=OffPolicyConfig)


class OffPolicyLearner(Generic[C]):
    """One group's replay and networks, and what trains them; an algorithm adds its own networks and gradient step."""

    def __init__(self, config: C, group: Group, device: torch.device, threads: int, seed: int) -> None:
        self.config = config
        self.name = group.name
        self.device = device
        self.threads = threads
        self.normalizer = ObservationNormalizer(group.observation.size, device) if config.normalize_obs else None
        self.replay = Replay(
            config.replay,
            group,
            device,
            batch_size=config.batch_size,
            n_step=config.n_step,
            gamma=config.gamma,
            seed=derived_seed(seed, "replay"),
        )
        self.exploration = torch.tensor([1.0, 0.0, 1.0], device=device)
        """[3]: share of random actions, standard deviation and reversion of the noise, see `warprun.kernels.sampling`."""
        self.rate = HostNumber(1.0, device)
        """What learning rates are multiplied by at this point of the run."""
        self.beta = HostNumber(float(config.replay.beta), device)
        """How much of the bias of priorities the weights take back at this point of the run."""
        self.updates = 0
        """Gradient steps so far."""
        self.number = HostNumber(0, device)
        """The same, where the gradient step under way reads it."""
        self.fuses = False
        """Whether gradient steps run in kernels of warprun's own."""
        self._store: Callable[[Trajectory], None] = self.store
        self._step: Callable[..., dict[str, Any]] = self.step

    def networks(self) -> dict[str, Trained]:
        """Return what is trained, by name."""
        raise NotImplementedError

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the values of choices [B, n], or the actions [B, C], for normalised observations [B, F]."""
        raise NotImplementedError

    def explore(self, progress: float) -> None:
        """Set `exploration` to what it is at `progress`, 0 to 1, of the run, the warm-up being over."""
        raise NotImplementedError

    def explored(self) -> dict[str, torch.Tensor]:
        """Return what `exploration` is now, [] each, by the name of the setting that it comes from."""
        raise NotImplementedError

    def learn(self, batch: Transitions, tau: float) -> tuple[torch.Tensor, dict[str, Any]]:
        """Take a gradient step on a batch and let the targets follow by `tau`; return temporal-difference errors [B] and metrics."""
        raise NotImplementedError

    def learn_fused(self, batch: Transitions, tau: float) -> tuple[torch.Tensor, dict[str, Any]]:
        """Do what `learn` does, in kernels."""
        raise NotImplementedError

    def normalized(self, obs: torch.Tensor) -> torch.Tensor:
        """Return observations as the networks see them."""
        return self.normalizer(obs) if self.normalizer else obs

    def take(self, trajectory: Trajectory) -> None:
        """Take in a rollout."""
        self.replay.advance(trajectory.groups[self.name])
        self._store(trajectory)

    def store(self, trajectory: Trajectory) -> None:
        """Do what `take` does on the device, the same each time."""
        group = trajectory.groups[self.name]
        self.replay.store(trajectory, group)
        if self.normalizer:
            self.normalizer.statistics.update(group.obs[:-1].flatten(0, 2))
            self.normalizer.refresh()

    def gradient_step(self) -> dict[str, Any]:
        """Draw a batch, learn from it, and judge it anew; return metrics, numbers or tensors []."""
        self.number.set(self.updates)
        self.updates += 1
        return self._step(*self.due())

    def due(self) -> tuple[bool, ...]:
        """Return what the gradient step that was counted last does, and not every one: first, whether the targets follow."""
        return (self.updates % self.config.target_every == 0,)

    def step(self, follows: bool, *others: bool) -> dict[str, Any]:
        """Do what `gradient_step` does on the device, the same each time that the same is `due`: `others` is for that, `learn` knows it."""
        batch = self.replay.draw(self.number.value, self.beta.value)
        if self.normalizer:
            batch = batch._replace(obs=self.normalizer(batch.obs), next_obs=self.normalizer(batch.next_obs))
        learn = self.learn_fused if self.fuses else self.learn
        error, metrics = learn(batch, self.config.target_tau if follows else 0.0)
        self.replay.judge(batch.row, error)
        return metrics

    def capture(self, captured: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Let `captured(work)` stand for the work on the device that is always the same: a CUDA graph of it."""
        self._store, self._step = captured(self.store), captured(self.step)

    def learning_rate(self, start: float) -> torch.Tensor:
        """Return a learning rate as it is at this point of the run."""
        return torch.as_tensor(start * self.rate.value, dtype=torch.float64)

    def schedule(self, progress: float) -> None:
        """Set what changes over the run to its value at `progress`."""
        config, replay = self.config, self.config.replay
        if config.learning_rate_end is not None:
            self.rate.set(1.0 + (config.learning_rate_end / config.learning_rate - 1.0) * progress)
        self.beta.set(replay.beta + (replay.beta_end - replay.beta) * progress)

    def diagnostics(self, trajectory: Trajectory) -> dict[str, Any]:
        """Return what is worth knowing where metrics are logged, numbers or tensors []: the name of a metric is kind/name."""
        found: dict[str, Any] = {
            "loss/learning_rate": self.learning_rate(self.config.learning_rate),
            "loss/gradient_steps": self.updates,
            "replay/size": self.replay.size,
        }
        found |= {f"explore/{name}": value for name, value in self.explored().items()}
        if self.normalizer:
            found["obs/clipped_share"] = self.normalizer.clipped_share(trajectory.groups[self.name].obs[:-1])
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        tensors = {"exploration": self.exploration, "updates": torch.tensor(self.updates)}
        for name, trained in self.networks().items():
            tensors |= {f"{name}/{key}": tensor for key, tensor in trained.tensors().items()}
        if self.normalizer:
            tensors |= {f"obs/{name}": tensor for name, tensor in self.normalizer.tensors().items()}
        return tensors | {f"replay/{name}": tensor for name, tensor in self.replay.tensors().items()}

    def fuse(self) -> Network | None:
        """Learn in kernels from now on where they know how, and return the acting network for the engine's; None where it cannot run it."""
        raise NotImplementedError


class OffPolicyAgent(Generic[C]):
    """Everything of an agent but its networks and how they learn from a batch."""

    Learner: ClassVar[type[OffPolicyLearner[Any]]]

    def __init__(self, config: C, groups: tuple[Group, ...], device: torch.device, threads: int, seed: int) -> None:
        check(config)
        check_groups(config, [group.name for group in groups])
        Slices(device, threads)  # torch with one thread: batches are small, and waking others takes longer
        self.learners = [
            self.Learner(group_config(config, group.name), group, device, threads, derived_seed(seed, "group", i))
            for i, group in enumerate(groups)
        ]
        self.exploration = {learner.name: learner.exploration for learner in self.learners}
        """How actions are drawn from what the policies give, see `Engine`."""
        self.env_steps = 0
        """Environment steps so far, summed over the environments."""
        self.metrics: dict[str, Any] = {}

    @property
    def n_parameters(self) -> int:
        """Numbers that are trained."""
        return sum(trained.parameters.numel() for learner in self.learners for trained in learner.networks().values())

    def act(self, trajectory: Trajectory, t: int) -> None:
        """Write the values of choices, or the actions, to every group's `policy_output` for the observations of step `t`."""
        for learner in self.learners:
            group = trajectory.groups[learner.name]
            with torch.no_grad():
                output = learner.act(learner.normalized(group.obs[t].flatten(0, 1)))
            group.policy_output[..., : output.shape[-1]] = output.view(*group.policy_output.shape[:-1], -1)

    def update(self, trajectory: Trajectory, progress: float) -> dict[str, Any]:
        """Take in a rollout at `progress`, 0 to 1, of the run and make the gradient steps that are due.

        Return the metrics of the last one; they hold until the next update.
        """
        self.env_steps += trajectory.horizon * trajectory.n_envs
        for learner in self.learners:
            learner.take(trajectory)
            if self.env_steps < learner.config.warmup:
                continue
            learner.schedule(progress)
            learner.explore(progress)
            # Counted from the end of the warm-up, so that no step is owed or lost whatever the number of environments.
            due = int((self.env_steps - learner.config.warmup) * learner.config.gradient_steps)
            found: dict[str, Any] = {}
            while learner.updates < due:
                found |= learner.gradient_step()
            prefix = "loss" if len(self.learners) == 1 else f"loss/{learner.name}"
            self.metrics |= {f"{prefix}/{name}": value for name, value in found.items()}
        return self.metrics

    def capture(self, captured: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Let `captured(work)` stand for the work on the device that is always the same: a CUDA graph of it."""
        for learner in self.learners:
            learner.capture(captured)

    def fuse(self) -> dict[str, Network] | None:
        """Return the networks for the engine if every group's network allows it, else None."""
        networks = {learner.name: learner.fuse() for learner in self.learners}
        return None if any(network is None for network in networks.values()) else networks  # type: ignore[return-value]

    @property
    def updates_are_fused(self) -> bool:
        """Whether gradient steps run in kernels of warprun's own, for every group."""
        return all(learner.fuses for learner in self.learners)

    def diagnostics(self, trajectory: Trajectory) -> dict[str, Any]:
        """Return what is worth knowing after a rollout where metrics are logged, numbers or tensors []; it changes nothing.

        Names are such as `replay/size`, of several groups `replay/GROUP/size`.
        """
        return by_group({learner.name: learner.diagnostics(trajectory) for learner in self.learners})

    def state(self) -> dict[str, torch.Tensor]:
        """Return everything that a checkpoint needs, by name."""
        tensors = {"env_steps": torch.tensor(self.env_steps)}
        for learner in self.learners:
            tensors |= {f"{learner.name}/{name}": tensor for name, tensor in learner.tensors().items()}
        return tensors

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Take over what `state()` of an agent with the same settings returned."""
        own = self.state()
        if own.keys() != state.keys():
            raise UserError(f"the checkpoint is of an agent with other settings: {sorted(own.keys() ^ state.keys())[0]} is in one only")
        for name, tensor in own.items():
            if tensor.shape != state[name].shape:
                raise UserError(
                    f"the checkpoint is of another agent: {name} has shape {tuple(state[name].shape)} in it, here {tuple(tensor.shape)}"
                )
            tensor.copy_(state[name])
        self.env_steps = int(state["env_steps"])
        for learner in self.learners:
            learner.updates = int(state[f"{learner.name}/updates"])
            learner.replay.load(state[f"{learner.name}/replay/counts"])
