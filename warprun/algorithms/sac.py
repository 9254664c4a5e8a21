"""Soft actor-critic with an adjusted temperature (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications")."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import nn

from warprun.algorithms import acting
from warprun.algorithms.settings import SACConfig
from warprun.kernels.bound import Call
from warprun.kernels.mlp import Network
from warprun.learning.communicator import Communicator, mean_
from warprun.learning.critics import Critics, Optimized, SquashedActor, Trained, seeded
from warprun.learning.distributions import squashed
from warprun.learning.interfaces import Context, Metrics, own_seed
from warprun.learning.kernels.cpu.actor import critic_rows, fused_layers, layer_rows
from warprun.learning.kernels.cpu.losses import Drawing
from warprun.learning.kernels.cpu.optimizer import FusedAdam
from warprun.learning.kernels.cpu.updates import BatchKernels, KernelOptimizer, module
from warprun.learning.networks import training
from warprun.learning.off_policy import Due, OffPolicyAgent, OffPolicyLearner
from warprun.learning.optimizers import Adam
from warprun.learning.replay.draws import seed_words
from warprun.learning.replay.ring import Transitions
from warprun.learning.replay.sequences import History, recall, recall_both, recall_next
from warprun.learning.shuffle import normals
from warprun.seeds import derived_seed
from warprun.spec import GroupSpec


def soft_target(
    next_values: torch.Tensor, next_log_prob: torch.Tensor, temperature: torch.Tensor, reward: torch.Tensor, discount: torch.Tensor
) -> torch.Tensor:
    """Return reward + discount (min_k Q'_k(s', a') - alpha log pi(a' | s')) [B], a' drawn from the policy, of `next_values` [K, B].

    Sections 4.1 and 6.
    """
    return reward + discount * (next_values.amin(0) - temperature * next_log_prob)


def critic_loss(values: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the sum over critics of half the weighted mean squared errors of `values` [K, B], []; J_Q of section 4.2."""
    return 0.5 * (weight * (values - target).square()).mean(-1).sum()


def actor_loss(values: torch.Tensor, log_prob: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return the mean of alpha log pi(a | s) - min_k Q_k(s, a), []; J_pi of section 4.2, with the smaller value as in section 6.

    `values` [K, B] and `log_prob` [B] are those of actions a that depend on the actor's parameters.
    """
    return (temperature * log_prob - values.amin(0)).mean()


def temperature_loss(temperature: torch.Tensor, log_prob: torch.Tensor, target_entropy: float) -> torch.Tensor:
    """Return the mean of -alpha (log pi(a | s) + target entropy), []; J(alpha) of section 6."""
    return -(temperature * (log_prob + target_entropy)).mean()


class Temperature(nn.Module):
    """The weight of the entropy, alpha; its logarithm is trained, so it stays positive."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor([math.log(initial)]))

    def forward(self) -> torch.Tensor:
        """Return alpha, []."""
        return self.log.exp().squeeze(0)


@dataclass(frozen=True)
class Networks:
    """What a gradient step trains, and the random streams of the actions that it draws."""

    actor: Optimized[SquashedActor]
    critics: Trained[Critics]
    temperature: Optimized[Temperature]
    target_entropy: float
    action_seed: int
    """Of the actions in the states of the batch."""
    next_action_seed: int
    """Of the actions in the states that follow."""
    number: torch.Tensor
    """[] int64: number of the gradient step."""


class TorchStep:
    """The gradient step of SAC by torch: algorithm 1."""

    def __init__(self, config: SACConfig, networks: Networks, communicator: Communicator) -> None:
        self.config, self.networks, self.communicator = config, networks, communicator

    def __call__(self, batch: Transitions[torch.Tensor], due: Due, history: History | None = None) -> tuple[torch.Tensor, Metrics]:
        """Learn from a batch; return the temporal-difference errors [B] and metrics.

        An error is the larger absolute one of both critics, as for TD3; the memory of the critics begins with zeros, as there.
        """
        of_critics = history and history.forgotten()
        config, networks, rows = self.config, self.networks, len(batch.reward)
        actor, critics, temperature = networks.actor, networks.critics, networks.temperature
        alpha = temperature.network().detach()

        of_actions, of_next_actions = recall_both(actor.network.memory, batch, history)
        target = self.target(batch, of_next_actions, of_critics, alpha)
        of_values = recall(critics.network.memory, batch, of_critics)
        with training(critics.network):
            values = critics.network(of_values, batch.action)
        loss = critic_loss(values, target, batch.weight)
        norm = critics.step(loss, config.max_grad_norm, self.communicator, rows)

        with torch.no_grad():
            judged = recall(critics.network.memory, batch, of_critics)
        with training(actor.network):
            action, log_prob = self.drawn(actor.network(of_actions), networks.action_seed)
        of_actor = actor_loss(critics.network(judged, action), log_prob, alpha)
        actor.step(of_actor, config.max_grad_norm, self.communicator, rows)

        log_prob = log_prob.detach()
        if config.temperature_learning_rate is not None:
            of_temperature = temperature_loss(temperature.network(), log_prob, networks.target_entropy)
            temperature.step(of_temperature, None, self.communicator, rows)

        if due.target:
            critics.update_target(config.tau)
        error = (values.detach() - target).abs().amax(0)
        means = torch.stack((loss.detach(), values.detach().mean(), of_actor.detach(), -log_prob.mean()))
        mean_(self.communicator, rows, means)
        return error, {"critic": means[0], "q": means[1], "actor": means[2], "entropy": means[3], "grad_norm": norm}

    @torch.no_grad()
    def target(
        self, batch: Transitions[torch.Tensor], of_next_actions: torch.Tensor, of_critics: History | None, temperature: torch.Tensor
    ) -> torch.Tensor:
        """Return the target values [B] of a batch; `of_next_actions`: the rows that follow, for the actor."""
        actor, critics = self.networks.actor.network, self.networks.critics.target
        action, log_prob = self.drawn(actor(of_next_actions), self.networks.next_action_seed)
        next_rows = recall_next(critics.memory, batch, of_critics)
        return soft_target(critics(next_rows, action), log_prob, temperature, batch.reward, batch.discount)

    def drawn(self, policy_output: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return actions [B, C] drawn from a policy and their log-densities [B]."""
        rows, outputs = policy_output.shape
        return squashed(policy_output, normals(rows * outputs // 2, seed, self.networks.number).view(rows, -1))


class KernelStep:
    """The gradient step of SAC in CPU kernels; for networks without memory."""

    def __init__(self, config: SACConfig, networks: Networks, context: Context) -> None:
        self.config, self.networks = config, networks
        actor, critics, temperature = networks.actor, networks.critics, networks.temperature
        act = layer_rows(actor.network.policy_layers(), actor.parameters, actor.network.features)
        outputs = [act[-1].out_row + k for k in range(act[-1].n_out)]
        tables = critic_rows(critics.network, critics.parameters, act[0].n_in + act[-1].n_out // 2)
        rows = max(tables[-1][-1].out_row, outputs[-1]) + 1
        most = max(len(actor.parameters), len(critics.parameters))
        self.kernels = BatchKernels(config.batch_size, rows, most, context.threads, context.communicator)
        self.actor = self.kernels.net(actor.parameters, act, outputs)
        self.critics = self.kernels.net(critics.parameters, list(chain(*tables)), [table[-1].out_row for table in tables])
        self.target_critics = self.critics._replace(parameters=critics.target_parameters.numpy())
        self.log_temperature = temperature.parameters.numpy()
        self.drawing, self.next_drawing = (self.stream(seed) for seed in (networks.action_seed, networks.next_action_seed))
        self.actor_optimizer = KernelOptimizer(actor, self.actor, config.max_grad_norm, context.communicator, config.batch_size)
        self.critics_optimizer = KernelOptimizer(critics, self.critics, config.max_grad_norm, context.communicator, config.batch_size)
        assert isinstance(temperature.optimizer, Adam)
        self.temperature_optimizer = FusedAdam(temperature.optimizer, temperature.parameters, temperature.learning_rate.tensor, None)
        self.temperature_gradient, self.entropy = torch.zeros(1), torch.zeros(1)
        self._slope: Call | None = None
        """Computes both of these."""

    def __call__(self, batch: Transitions[torch.Tensor], due: Due, history: History | None = None) -> tuple[torch.Tensor, Metrics]:
        """Learn from a batch; return the temporal-difference errors [B] and metrics.

        The critics' target moves before the actor's step, which does not read it.
        """
        kernels = self.kernels
        kernels.compute("soft_critics", (self.actor, self.target_critics, self.critics), self.next_drawing, batch)
        norm = self.critics_optimizer.step(self.config.tau if due.target else 0.0)
        q, of_critics = kernels.means("soft_critics")
        kernels.compute("soft_actor", (self.critics, self.actor), self.drawing, batch)
        self.actor_optimizer.step(0.0)
        log_prob, of_actor = kernels.means("soft_actor")
        if self._slope is None:
            places = (self.temperature_gradient.numpy(), self.entropy.numpy())
            self._slope = Call(module().temperature, self.log_temperature, log_prob.numpy(), self.networks.target_entropy, *places)
        self._slope(0, 1, 0)
        if self.config.temperature_learning_rate is not None:
            self.temperature_optimizer.step(self.temperature_gradient)
        return kernels.error, {"critic": of_critics, "q": q, "actor": of_actor, "entropy": self.entropy[0], "grad_norm": norm}

    def stream(self, seed: int) -> Drawing:
        """Return what the kernels draw actions by, from the random stream of a seed."""
        low, high = (np.uint32(word) for word in seed_words(seed))
        return Drawing(self.log_temperature, low, high, self.networks.number.numpy())


class SACLearner(OffPolicyLearner[SACConfig]):
    """The actor, the critics and the temperature of one group."""

    recordable = True

    def __init__(self, config: SACConfig, group: GroupSpec, context: Context, seed: int) -> None:
        super().__init__(config, group, context, seed)
        device, features, components = context.device, group.observation.size, group.action.components
        actor = seeded(derived_seed(seed, "actor"), lambda: acting.squashed_actor(config, group))
        critics = seeded(derived_seed(seed, "critics"), lambda: Critics(features, components, config.network, 2))
        self.actor = Optimized(actor, config.optimizer, config.actor_learning_rate, device)
        self.critics = Trained(critics, config.optimizer, config.learning_rate, device)
        self.temperature = Optimized(Temperature(config.temperature), config.optimizer, config.temperature_learning_rate or 0.0, device)
        networks = Networks(
            self.actor,
            self.critics,
            self.temperature,
            target_entropy=-float(components) if config.target_entropy is None else config.target_entropy,
            action_seed=own_seed(context, seed, "actions"),
            next_action_seed=own_seed(context, seed, "next_actions"),
            number=self.number.tensor,
        )
        theta = config.noise_theta
        # On the device, because copying from the host would wait for the device.
        self.noise = torch.tensor([0.0, math.sqrt(theta * (2.0 - theta)), theta], device=device)
        if context.plan.gradients == "kernels":
            self.gradient_step = KernelStep(config, networks, context)
        else:
            self.gradient_step = TorchStep(config, networks, context.communicator)

    def trained(self) -> Mapping[str, Optimized[nn.Module]]:
        """Return what is trained by name."""
        return {"actor": self.actor, "critics": self.critics, "temperature": self.temperature}

    @property
    def policy(self) -> SquashedActor:
        """The network that acts: it gives means and log standard deviations [B, 2 C]."""
        return self.actor.network

    def kernel_network(self) -> Network:
        """Return the acting network for fused rollouts."""
        return fused_layers(self.actor.network.policy_layers(), self.actor.parameters, self.normalizer)

    def explore(self, progress: float) -> None:
        """End the uniform actions: the policy itself explores."""
        self.exploration.copy_(self.noise)

    def exploration_metrics(self) -> Metrics:
        """Return the temperature."""
        return {"temperature": self.temperature.network().detach()}

    def due(self) -> Due:
        """Return whether the gradient step that `updates` counted last moves the targets; every one trains the actor."""
        return Due(target=self.updates % self.config.target_update_interval == 0, actor=True)

    def learning_rate(self) -> torch.Tensor:
        """Return the current learning rate of the critics, []."""
        return self.critics.learning_rate.tensor


class SAC(OffPolicyAgent[SACConfig]):
    """A stochastic actor that maximises the soft value: the return with a bonus for entropy."""

    Config = SACConfig

    @classmethod
    def make_learner(cls, config: SACConfig, group: GroupSpec, context: Context, seed: int) -> SACLearner:
        """Return the learner of one group."""
        return SACLearner(config, group, context, seed)
