"""Soft actor-critic with an adjusted temperature (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications")."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn

from warprun.algorithms import acting
from warprun.algorithms.settings import SACConfig
from warprun.learning.critics import Critics
from warprun.learning.descent import Due, Optimized, Taken, Terms, Trained
from warprun.learning.distributions import squashed
from warprun.learning.draws import Stream, normals
from warprun.learning.interfaces import Context, Metrics, own_seed
from warprun.learning.kernels.losses import soft_actor, soft_critics, temperature_slope
from warprun.learning.kernels.tile_loss import MeanLoss, TileLoss
from warprun.learning.networks import seeded, training
from warprun.learning.off_policy import OffPolicyAgent, OffPolicyLearner
from warprun.learning.replay import TransitionBatch
from warprun.learning.sequences import History, recall, recall_both, recall_next
from warprun.spec import GroupSpec
from warprun.state import derived_seed


def soft_target(
    next_values: torch.Tensor,
    next_log_prob: torch.Tensor,
    temperature: torch.Tensor,
    reward: torch.Tensor,
    discount: torch.Tensor,
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


class SACLearner(OffPolicyLearner[SACConfig]):
    """The actor, the critics and the temperature of one group; critics remember nothing before a sequence, as for TD3."""

    recordable = True

    def __init__(self, config: SACConfig, group: GroupSpec, context: Context, seed: int) -> None:
        device, observation, components = context.device, group.observation, group.action.components
        actor = seeded(derived_seed(seed, "actor"), lambda: acting.squashed_actor(config, group))
        critics = seeded(derived_seed(seed, "critics"), lambda: Critics(observation, components, config.network, 2))
        self.actor = Optimized(actor, config, config.actor_learning_rate, device)
        self.critics = Trained(critics, config, config.learning_rate, device)
        temperature, rate = Temperature(config.temperature), config.temperature_learning_rate or 0.0
        self.temperature = Optimized(temperature, replace(config, max_grad_norm=None), rate, device)
        trained = {"actor": self.actor, "critics": self.critics, "temperature": self.temperature}
        super().__init__(config, group, context, seed, trained)
        self.target_entropy = -float(components) if config.target_entropy is None else float(config.target_entropy)
        self.actions = Stream(own_seed(context, seed, "actions"), self.number.tensor)
        """Of the actions in the states of the batch."""
        self.next_actions = Stream(own_seed(context, seed, "next_actions"), self.number.tensor)
        """Of the actions in the states that follow."""
        log_temperature, target = self.temperature.parameters, self.target_entropy
        critics_loss = TileLoss(soft_critics, (actor, self.critics.target), 1, (log_temperature, self.next_actions))
        self.critics_step = self.descent(self.critics, self.critics_loss, critics_loss)
        actor_loss = TileLoss(soft_actor, (critics,), 1 + 2 * components, (log_temperature, self.actions))
        self.actor_step = self.descent(self.actor, self.actor_loss, actor_loss)
        self.temperature_step = self.descent(self.temperature, self.temperature_loss, MeanLoss(temperature_slope, target))
        theta = config.noise_theta
        self.noise = torch.tensor([0.0, math.sqrt(theta * (2.0 - theta)), theta], device=device)

    def gradient_step(self, batch: TransitionBatch, due: Due, history: History | None = None) -> tuple[torch.Tensor, Metrics]:
        """Learn from a batch; algorithm 1."""
        of_critics = history and history.forgotten()
        rows, next_rows = recall_both(self.actor.network.memory, batch, history)
        loss, q, error, norm = self.critics_step(due, batch, next_rows, of_critics)
        actor = self.actor_step(due, batch, rows, of_critics)
        if self.config.temperature_learning_rate is not None:
            self.temperature_step(due, actor)
        return error, {"critic": loss, "q": q, "actor": actor.loss, "entropy": actor.value, "grad_norm": norm}

    @torch.no_grad()
    def target(self, batch: TransitionBatch, next_rows: torch.Tensor, of_critics: History | None) -> torch.Tensor:
        """Return the target values [B] of a batch; `next_rows`: the rows that follow, for the actor."""
        critics, temperature = self.critics.target, self.temperature.network()
        action, log_prob = drawn(self.actor.network(next_rows), self.next_actions)
        next_values = critics(recall_next(critics.memory, batch, of_critics), action)
        return soft_target(next_values, log_prob, temperature, batch.reward, batch.discount)

    def critics_loss(self, batch: TransitionBatch, next_rows: torch.Tensor, of_critics: History | None) -> Terms:
        """Compare the values of a batch with their targets; an error is the larger one of both critics, as for TD3."""
        critics, target = self.critics.network, self.target(batch, next_rows, of_critics)
        rows = recall(critics.memory, batch, of_critics)
        with training(critics):
            values = critics(rows, batch.action)
        return Terms(critic_loss(values, target, batch.weight), values, (values.detach() - target).abs().amax(0))

    def actor_loss(self, batch: TransitionBatch, rows: torch.Tensor, of_critics: History | None) -> Terms:
        """Judge actions that the policy draws in the states of a batch, `rows`, by the critics after their step."""
        actor, critics = self.actor.network, self.critics.network
        with torch.no_grad():
            judged = recall(critics.memory, batch, of_critics)
        with training(actor):
            action, log_prob = drawn(actor(rows), self.actions)
        loss = actor_loss(critics(judged, action), log_prob, self.temperature.network().detach())
        return Terms(loss, -log_prob, log_prob.detach())

    def temperature_loss(self, actor: Taken) -> Terms:
        """Compare the entropy of the actions that the actor's step has drawn with its target."""
        loss = temperature_loss(self.temperature.network(), actor.of_rows, self.target_entropy)
        return Terms(loss, actor.of_rows, actor.of_rows)

    def exploration_metrics(self) -> Metrics:
        """Return the temperature."""
        return {"temperature": self.temperature.network().detach()}


def drawn(policy_output: torch.Tensor, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """Return actions [B, C] drawn from a policy [B, 2 C] and their log-densities [B]."""
    rows, outputs = policy_output.shape
    return squashed(policy_output, normals(rows * outputs // 2, *stream).view(rows, -1))


class SAC(OffPolicyAgent[SACConfig]):
    """A stochastic actor that maximises the soft value: the return with a bonus for entropy."""

    Config = SACConfig
    Learner = SACLearner
