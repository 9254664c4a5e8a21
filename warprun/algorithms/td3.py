"""Twin delayed DDPG (Fujimoto et al. 2018): two critics, a delayed actor, smoothed targets. With other settings it is DDPG (`ddpg`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import nn

from warprun.algorithms import acting
from warprun.algorithms.settings import TD3Config
from warprun.kernels.mlp import Network
from warprun.learning.communicator import Communicator, mean_
from warprun.learning.critics import Actor, Critics, Optimized, Trained, seeded
from warprun.learning.interfaces import Context, Metrics, own_seed
from warprun.learning.kernels.cpu.actor import critic_rows, fused_layers, layer_rows
from warprun.learning.kernels.cpu.losses import Smoothing
from warprun.learning.kernels.cpu.updates import BatchKernels, KernelOptimizer
from warprun.learning.networks import training
from warprun.learning.off_policy import Due, OffPolicyAgent, OffPolicyLearner
from warprun.learning.replay.draws import seed_words
from warprun.learning.replay.ring import Transitions
from warprun.learning.replay.sequences import History, recall, recall_next
from warprun.learning.shuffle import normals
from warprun.seeds import derived_seed
from warprun.spec import GroupSpec


def smoothed(action: torch.Tensor, noise: torch.Tensor, std: float, clip: float) -> torch.Tensor:
    """Return actions [B, C] plus `std` times standard normal `noise` [B, C]; the noise is clipped at `clip`, the sum at -1 and 1.

    Fujimoto et al. 2018, section 5.3.
    """
    return (action + (std * noise).clamp(-clip, clip)).clamp(-1.0, 1.0)


def critic_target(next_values: torch.Tensor, reward: torch.Tensor, discount: torch.Tensor) -> torch.Tensor:
    """Return reward + discount min_k Q'_k(s', a') [B] of `next_values` [K, B]; Fujimoto et al. 2018, section 4.2."""
    return reward + discount * next_values.amin(0)


def critic_loss(values: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the sum over critics of the weighted mean squared errors of `values` [K, B], []."""
    return (weight * (values - target).square()).mean(-1).sum()


@dataclass(frozen=True)
class Networks:
    """What a gradient step trains, and the random stream of the smoothing noise."""

    actor: Trained[Actor]
    critics: Trained[Critics]
    smoothing_seed: int
    number: torch.Tensor
    """[] int64: number of the gradient step."""


class TorchStep:
    """The gradient step of TD3 by torch."""

    def __init__(self, config: TD3Config, networks: Networks, communicator: Communicator) -> None:
        self.config, self.networks, self.communicator = config, networks, communicator

    def __call__(self, batch: Transitions[torch.Tensor], due: Due, history: History | None = None) -> tuple[torch.Tensor, Metrics]:
        """Learn from a batch; return the temporal-difference errors [B] and metrics.

        An error is the largest absolute one of all critics (Fujimoto et al. 2020, LAP). What replay memory stored beside a sequence is of
        the actor; the memory of the critics begins with zeros.
        """
        config, actor, critics, rows = self.config, self.networks.actor, self.networks.critics, len(batch.reward)
        of_critics = history and history.forgotten()
        target = self.target(batch, history)
        of_values = recall(critics.network.memory, batch, of_critics)
        with training(critics.network):
            values = critics.network(of_values, batch.action)
        loss = critic_loss(values, target, batch.weight)
        norm = critics.step(loss, config.max_grad_norm, self.communicator, rows)
        error = (values.detach() - target).abs().amax(0)
        means = torch.stack((loss.detach(), values.detach().mean()))
        mean_(self.communicator, rows, means)
        metrics = {"critic": means[0], "q": means[1], "grad_norm": norm}
        if due.actor:
            with torch.no_grad():
                judged = recall(critics.network.memory, batch, of_critics)
            with training(actor.network):
                action = actor.network(recall(actor.network.memory, batch, history))
            actor_loss = -critics.network.first(judged, action).mean()
            actor.step(actor_loss, config.max_grad_norm, self.communicator, rows)
            metrics["actor"] = actor_loss.detach()
            mean_(self.communicator, rows, metrics["actor"])
        if due.target:
            critics.update_target(config.tau)
            actor.update_target(config.tau)
        return error, metrics

    @torch.no_grad()
    def target(self, batch: Transitions[torch.Tensor], history: History | None = None) -> torch.Tensor:
        """Return the target values [B] of a batch."""
        config, actor, critics = self.config, self.networks.actor.target, self.networks.critics.target
        action = actor(recall_next(actor.memory, batch, history))
        if config.target_policy_noise > 0:
            noise = normals(action.numel(), self.networks.smoothing_seed, self.networks.number).view_as(action)
            action = smoothed(action, noise, config.target_policy_noise, config.target_noise_clip)
        next_rows = recall_next(critics.memory, batch, history and history.forgotten())
        return critic_target(critics(next_rows, action), batch.reward, batch.discount)


class KernelStep:
    """The gradient step of TD3 in CPU kernels; for networks without memory."""

    def __init__(self, config: TD3Config, networks: Networks, context: Context) -> None:
        self.config, actor, critics = config, networks.actor, networks.critics
        low, high = (np.uint32(word) for word in seed_words(networks.smoothing_seed))
        std, clip = float(config.target_policy_noise), float(config.target_noise_clip)
        self.smoothing = Smoothing(std, clip, low, high, networks.number.numpy())
        act = layer_rows(actor.network.policy_layers(), actor.parameters, actor.network.features)
        tables = critic_rows(critics.network, critics.parameters, act[0].n_in + act[-1].n_out)
        rows = max(tables[-1][-1].out_row + 1, act[-1].out_row + act[-1].n_out)
        self.kernels = BatchKernels(config.batch_size, rows, len(critics.parameters), context.threads, context.communicator)
        self.actor = self.kernels.net(actor.parameters, act, [act[-1].out_row + d for d in range(act[-1].n_out)])
        self.critics = self.kernels.net(critics.parameters, list(chain(*tables)), [table[-1].out_row for table in tables])
        self.first_critic = self.critics._replace(layers=self.critics.layers[: len(tables[0])], outputs=self.critics.outputs[:1])
        self.target_actor = self.actor._replace(parameters=actor.target_parameters.numpy())
        self.target_critics = self.critics._replace(parameters=critics.target_parameters.numpy())
        self.actor_optimizer = KernelOptimizer(actor, self.actor, config.max_grad_norm, context.communicator, config.batch_size)
        self.critics_optimizer = KernelOptimizer(critics, self.critics, config.max_grad_norm, context.communicator, config.batch_size)

    def __call__(self, batch: Transitions[torch.Tensor], due: Due, history: History | None = None) -> tuple[torch.Tensor, Metrics]:
        """Learn from a batch; return the temporal-difference errors [B] and metrics.

        The critics' target moves before the actor's step, which does not read it.
        """
        kernels, tau = self.kernels, self.config.tau if due.target else 0.0
        kernels.compute("critics", (self.target_actor, self.target_critics, self.critics), self.smoothing, batch)
        norm = self.critics_optimizer.step(tau)
        q, loss = kernels.means("critics")
        metrics = {"critic": loss, "q": q, "grad_norm": norm}
        if due.actor:
            kernels.compute("actor", (self.first_critic, self.actor), None, batch)
            self.actor_optimizer.step(tau)
            metrics["actor"] = kernels.means("actor")[1]
        return kernels.error, metrics


class TD3Learner(OffPolicyLearner[TD3Config]):
    """The actor and the critics of one group."""

    recordable = True

    def __init__(self, config: TD3Config, group: GroupSpec, context: Context, seed: int, *, n_critics: int) -> None:
        super().__init__(config, group, context, seed)
        device, features, components = context.device, group.observation.size, group.action.components
        actor = seeded(derived_seed(seed, "actor"), lambda: acting.actor(config, group))
        critics = seeded(derived_seed(seed, "critics"), lambda: Critics(features, components, config.network, n_critics))
        self.actor = Trained(actor, config.optimizer, config.actor_learning_rate, device)
        self.critics = Trained(critics, config.optimizer, config.learning_rate, device)
        networks = Networks(self.actor, self.critics, own_seed(context, seed, "smoothing"), self.number.tensor)
        if context.plan.gradients == "kernels":
            self.gradient_step = KernelStep(config, networks, context)
        else:
            self.gradient_step = TorchStep(config, networks, context.communicator)
        # On the device, because copying from the host would wait for the device.
        self.noise = torch.tensor([0.0, config.noise_std, config.noise_theta if config.noise == "ou" else 1.0], device=device)

    def trained(self) -> Mapping[str, Optimized[nn.Module]]:
        """Return the trained networks by name."""
        return {"actor": self.actor, "critics": self.critics}

    @property
    def policy(self) -> Actor:
        """The network that acts."""
        return self.actor.network

    def kernel_network(self) -> Network:
        """Return the acting network for fused rollouts."""
        return fused_layers(self.actor.network.policy_layers(), self.actor.parameters, self.normalizer)

    def explore(self, progress: float) -> None:
        """Set the noise, which is constant."""
        self.exploration.copy_(self.noise)

    def exploration_metrics(self) -> Metrics:
        """Return the standard deviation of the noise; it is 0 before `learning_starts`, when actions are random."""
        return {"noise_std": self.exploration[1]}

    def due(self) -> Due:
        """Return whether the gradient step that `updates` counted last moves the targets, and whether it trains the actor."""
        updates, delay = self.updates, self.config.policy_delay
        return Due(target=updates % (self.config.target_update_interval * delay) == 0, actor=updates % delay == 0)

    def learning_rate(self) -> torch.Tensor:
        """Return the current learning rate of the critics, []."""
        return self.critics.learning_rate.tensor


class TD3(OffPolicyAgent[TD3Config]):
    """An actor that follows the gradient of the first of two critics (Silver et al. 2014)."""

    Config = TD3Config

    @classmethod
    def make_learner(cls, config: TD3Config, group: GroupSpec, context: Context, seed: int) -> TD3Learner:
        """Return the learner of one group."""
        return TD3Learner(config, group, context, seed, n_critics=2)
