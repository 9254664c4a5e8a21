"""Twin delayed DDPG (Fujimoto et al. 2018): two critics, a delayed actor, smoothed targets.

DDPG (Lillicrap et al. 2016) is TD3 with one critic, without delay and without smoothing.
"""

from __future__ import annotations

import torch

from warprun.algorithms import acting
from warprun.algorithms.settings import DDPGConfig, TD3Config
from warprun.learning.critics import Critics
from warprun.learning.descent import Due, Terms, Trained
from warprun.learning.draws import Stream, normals
from warprun.learning.interfaces import Context, Metrics, own_seed
from warprun.learning.kernels import losses
from warprun.learning.kernels.tile_loss import TileLoss
from warprun.learning.networks import seeded, training
from warprun.learning.off_policy import OffPolicyAgent, OffPolicyLearner
from warprun.learning.replay import TransitionBatch
from warprun.learning.sequences import History, recall, recall_next
from warprun.spec import GroupSpec
from warprun.state import derived_seed


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


class TD3Learner(OffPolicyLearner[TD3Config]):
    """The actor and the critics of one group.

    With memory, what replay stored beside a sequence is of the actor; the critics remember nothing before it
    (`of_critics`).
    """

    recordable = True

    def __init__(self, config: TD3Config, group: GroupSpec, context: Context, seed: int, n_critics: int = 2) -> None:
        device = context.device
        actor = seeded(derived_seed(seed, "actor"), lambda: acting.actor(config, group))
        sides = (group.observation, group.action.components)
        critics = seeded(derived_seed(seed, "critics"), lambda: Critics(*sides, config.network, n_critics))
        self.actor = Trained(actor, config, config.actor_learning_rate, device)
        self.critics = Trained(critics, config, config.learning_rate, device)
        super().__init__(config, group, context, seed, {"actor": self.actor, "critics": self.critics})
        self.smoothing = Stream(own_seed(context, seed, "smoothing"), self.number.tensor)
        smoothing = (float(config.target_policy_noise), float(config.target_noise_clip), self.smoothing)
        of_critics = TileLoss(losses.critics, (self.actor.target, self.critics.target), 1, smoothing)
        self.critics_step = self.descent(self.critics, self.critics_loss, of_critics)
        self.actor_step = self.descent(self.actor, self.actor_loss, TileLoss(losses.actor, (critics,)))
        theta = config.noise_theta if config.noise == "ou" else 1.0
        self.noise = torch.tensor([0.0, config.noise_std, theta], device=device)

    def gradient_step(self, batch: TransitionBatch, due: Due, history: History | None = None) -> tuple[torch.Tensor, Metrics]:
        """Learn from a batch; Fujimoto et al. 2018, algorithm 1."""
        of_critics = history and history.forgotten()
        loss, q, error, norm = self.critics_step(due, batch, history, of_critics)
        metrics = {"critic": loss, "q": q, "grad_norm": norm}
        if due.actor:
            metrics["actor"] = self.actor_step(due, batch, history, of_critics).loss
        return error, metrics

    @torch.no_grad()
    def target(self, batch: TransitionBatch, history: History | None, of_critics: History | None) -> torch.Tensor:
        """Return the target values [B] of a batch."""
        config, actor, critics = self.config, self.actor.target, self.critics.target
        action = actor(recall_next(actor.memory, batch, history))
        if config.target_policy_noise > 0:
            noise = normals(action.numel(), *self.smoothing).view_as(action)
            action = smoothed(action, noise, config.target_policy_noise, config.target_noise_clip)
        next_values = critics(recall_next(critics.memory, batch, of_critics), action)
        return critic_target(next_values, batch.reward, batch.discount)

    def critics_loss(self, batch: TransitionBatch, history: History | None, of_critics: History | None) -> Terms:
        """Compare the values of a batch with their targets; an error is the largest of all critics (LAP, 2020)."""
        critics, target = self.critics.network, self.target(batch, history, of_critics)
        rows = recall(critics.memory, batch, of_critics)
        with training(critics):
            values = critics(rows, batch.action)
        return Terms(critic_loss(values, target, batch.weight), values, (values.detach() - target).abs().amax(0))

    def actor_loss(self, batch: TransitionBatch, history: History | None, of_critics: History | None) -> Terms:
        """Return the negative mean value of the actor's actions by the first critic; Silver et al. 2014."""
        actor, critics = self.actor.network, self.critics.network
        with torch.no_grad():
            judged = recall(critics.memory, batch, of_critics)
        with training(actor):
            action = actor(recall(actor.memory, batch, history))
        values = critics.first(judged, action)
        return Terms(-values.mean(), values, values.detach())

    def exploration_metrics(self) -> Metrics:
        """Return the standard deviation of the noise; it is 0 before `learning_starts`, when actions are random."""
        return {"noise_std": self.exploration[1]}

    def due(self) -> Due:
        """Return whether the gradient step that `updates` counted last moves the targets, and whether it trains the actor."""
        updates, delay = self.updates, self.config.policy_delay
        return Due(target=updates % (self.config.target_update_interval * delay) == 0, actor=updates % delay == 0)


class TD3(OffPolicyAgent[TD3Config]):
    """An actor that follows the gradient of the first of two critics."""

    Config = TD3Config
    Learner = TD3Learner


class DDPG(OffPolicyAgent[DDPGConfig]):
    """An actor that follows the gradient of one critic."""

    Config = DDPGConfig

    @classmethod
    def make_learner(cls, config: DDPGConfig, group: GroupSpec, context: Context, seed: int) -> TD3Learner:
        as_td3 = TD3Config(**vars(config), policy_delay=1, target_policy_noise=0.0, target_noise_clip=0.0)
        return TD3Learner(as_td3, group, context, seed, config.critics)
