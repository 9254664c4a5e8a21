"""Deep Q-network (Mnih et al. 2015) with settings for double (van Hasselt et al. 2016), dueling (Wang et al. 2016), distributional
(Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression"), rescaled (Pohlen et al. 2018,
"Observe and Look
Further: Achieving Consistent Performance on Atari") and n-step learning."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from warprun.algorithms.acting import q_network, values_name
from warprun.algorithms.settings import DQNConfig
from warprun.learning import formulas
from warprun.learning.critics import ActingNetwork, QuantileQNetwork
from warprun.learning.descent import Due, Terms, Trained
from warprun.learning.interfaces import Context, Metrics
from warprun.learning.kernels.losses import q_loss
from warprun.learning.kernels.tile_loss import TileLoss
from warprun.learning.networks import seeded, training
from warprun.learning.off_policy import OffPolicyAgent, OffPolicyLearner
from warprun.learning.replay import TransitionBatch
from warprun.learning.sequences import History, recall_both, recall_next
from warprun.learning.tensors import on_tensors
from warprun.spec import GroupSpec
from warprun.state import derived_seed, setting


def dqn_target(next_target: torch.Tensor, next_online: torch.Tensor | None, reward: torch.Tensor, discount: torch.Tensor) -> torch.Tensor:
    """Return reward + discount Q'(s', a) [B]: a is the best by `next_online` [B, n] (double) or, without it, by `next_target` [B, n]."""
    best = (next_target if next_online is None else next_online).argmax(-1, keepdim=True)
    return reward + discount * next_target.gather(-1, best).squeeze(-1)


def rescaled(values: torch.Tensor, eps: float | None) -> torch.Tensor:
    """Return h(x) of `values`, of any shape, see `formulas.rescaled`; None: the values."""
    return values if eps is None else on_tensors(formulas.rescaled)(values, eps)


def unscaled(values: torch.Tensor, eps: float | None) -> torch.Tensor:
    """Return the inverse of `rescaled`."""
    return values if eps is None else on_tensors(formulas.unscaled)(values, eps)


def dqn_loss(value: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the mean of the weighted Huber losses (delta 1) of values [B], []; Mnih et al. 2015, methods."""
    return (weight * nn.functional.huber_loss(value, target, reduction="none")).mean()


def quantile_target(next_quantiles: torch.Tensor, best: torch.Tensor, reward: torch.Tensor, discount: torch.Tensor) -> torch.Tensor:
    """Return reward + discount theta'_j(s', best) [B, N] of `next_quantiles` [B, n, N] and `best` [B]; Dabney et al. 2018, algorithm 1."""
    return reward[:, None] + discount[:, None] * of_action(next_quantiles, best)


def quantile_loss(quantiles: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the mean of the weighted quantile Huber losses (kappa 1) of `quantiles` [B, N] against `target` [B, M], [].

    The loss of a row is the sum over quantiles i of the mean over targets j of |tau_i - [u_ij < 0]| L(u_ij), where u_ij
    is target j minus quantile i and tau_i = (i + 1/2) / N; Dabney et al. 2018, equation 10 and algorithm 1.
    """
    count = quantiles.shape[-1]
    tau = (torch.arange(count, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / count
    error = target[:, None, :] - quantiles[:, :, None]
    huber = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
    side = torch.where(error.detach() < 0, 1.0 - tau[:, None], tau[:, None])
    return (weight * (side * huber).mean(-1).sum(-1)).mean()


def of_action(quantiles: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return the quantiles [B, N] of `action` [B] among those of all actions [B, n, N]."""
    return quantiles.gather(1, action[:, None, None].expand(-1, 1, quantiles.shape[-1])).squeeze(1)


def values_loss(config: DQNConfig, values: Trained[ActingNetwork], batch: TransitionBatch, history: History | None = None) -> Terms:
    """Compare the values of the actions of a batch with their targets, h(r + discount h^-1(Q')) if they are rescaled."""
    rows, next_rows = recall_both(values.network.memory, batch, history)
    with torch.no_grad():
        next_online = values.network(next_rows) if config.double else None
        next_target = values.target(recall_next(values.target.memory, batch, history))
        next_values = unscaled(next_target, config.value_rescaling)
        target = rescaled(dqn_target(next_values, next_online, batch.reward, batch.discount), config.value_rescaling)
    with training(values.network):
        value = values.network(rows).gather(-1, batch.action.long()).squeeze(-1)
    loss = dqn_loss(value, target, batch.weight)
    return Terms(loss, unscaled(value.detach(), config.value_rescaling), value.detach() - target)


def quantiles_loss(config: DQNConfig, values: Trained[ActingNetwork], batch: TransitionBatch, history: History | None = None) -> Terms:
    """Compare the quantiles of the actions of a batch with their targets; values are their means."""
    online, target_network = values.network, values.target
    assert isinstance(online, QuantileQNetwork) and isinstance(target_network, QuantileQNetwork)
    rows, next_rows = recall_both(online.memory, batch, history)
    with torch.no_grad():
        next_target = recall_next(target_network.memory, batch, history)
        best = (online(next_rows) if config.double else target_network(next_target)).argmax(-1)
        target = quantile_target(target_network.quantiles(next_target), best, batch.reward, batch.discount)
    with training(online):
        quantiles = of_action(online.quantiles(rows), batch.action.squeeze(-1).long())
    value = quantiles.detach().mean(-1)
    return Terms(quantile_loss(quantiles, target, batch.weight), value, value - target.mean(-1))


class DQNLearner(OffPolicyLearner[DQNConfig]):
    """The Q-network of one group."""

    recordable = True

    def __init__(self, config: DQNConfig, group: GroupSpec, context: Context, seed: int) -> None:
        network = seeded(derived_seed(seed, "values"), lambda: q_network(config, group))
        self.values = Trained(network, config, config.learning_rate, context.device)
        super().__init__(config, group, context, seed, {values_name(config): self.values})
        self._set_epsilon = setting(self.exploration[0])
        loss = partial(values_loss if config.quantiles is None else quantiles_loss, config, self.values)
        tile_loss, scratch = q_loss(config.dueling, config.quantiles, config.value_rescaling)
        in_kernels = TileLoss(tile_loss, (self.values.target,), scratch, (config.double, group.action.outputs))
        self.values_step = self.descent(self.values, loss, in_kernels)

    def gradient_step(self, batch: TransitionBatch, due: Due, history: History | None = None) -> tuple[torch.Tensor, Metrics]:
        """Learn from a batch; Mnih et al. 2015, algorithm 1."""
        loss, q, error, norm = self.values_step(due, batch, history)
        return error, {"value": loss, "q": q, "grad_norm": norm}

    def explore(self, progress: float) -> None:
        """Set epsilon, which falls linearly."""
        config = self.config
        part = min(progress / config.exploration_fraction, 1.0) if config.exploration_fraction else 1.0
        self._set_epsilon(config.epsilon_start + (config.epsilon_end - config.epsilon_start) * part)

    def exploration_metrics(self) -> Metrics:
        """Return epsilon, which is 1 before `learning_starts`."""
        return {"epsilon": self.exploration[0]}


class DQN(OffPolicyAgent[DQNConfig]):
    """Learns the values of actions by temporal differences."""

    Config = DQNConfig
    Learner = DQNLearner
