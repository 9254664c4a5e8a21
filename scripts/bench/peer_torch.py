"""A policy, A2C and PPO in torch on gymnasium's vector environment or EnvPool: one trunk, whole batches."""

from __future__ import annotations

import numpy as np
import torch
from peer_vector import Vector
from peer_work import (
    ACTIONS,
    CLIP,
    ENTROPY_COEF,
    FEATURES,
    GAMMA,
    HORIZON,
    LAMBDA,
    LEARNING_RATE,
    MAX_NORM,
    VALUE_COEF,
    Iterate,
    Work,
)
from torch import nn


class Network(nn.Module):
    """Logits and value from one trunk."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, ACTIONS + 1)
        )

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.layers(obs)
        return out[:, :ACTIONS].log_softmax(-1), out[:, ACTIONS]


class Store:
    """A rollout, [T, N, ...]."""

    def __init__(self, n_envs: int) -> None:
        shape = (HORIZON, n_envs)
        self.obs = torch.zeros(*shape, FEATURES)
        self.action = torch.zeros(shape, dtype=torch.int64)
        self.log_prob, self.value, self.reward, self.going_on = (torch.zeros(shape) for _ in range(4))


def advantages(store: Store, last: torch.Tensor) -> torch.Tensor:
    """Return generalised advantages [T, N]; a time limit counts as a termination."""
    found, advantage, following = torch.empty_like(store.value), torch.zeros_like(last), last
    for t in reversed(range(HORIZON)):
        going_on = store.going_on[t]
        advantage = store.reward[t] + GAMMA * following * going_on - store.value[t] + GAMMA * LAMBDA * going_on * advantage
        found[t], following = advantage, store.value[t]
    return found


def prepare(work: Work, variant: str, n_envs: int, threads: int) -> tuple[Iterate, str]:
    """Return one iteration; `variant` is the library of the environments."""
    torch.set_num_threads(threads)
    vector, network, store = Vector(variant, n_envs, threads), Network(work.width), Store(n_envs)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, eps=1e-5, foreach=True)
    obs = vector.reset()

    @torch.no_grad()
    def rollout() -> int:
        nonlocal obs
        for t in range(HORIZON):
            store.obs[t] = torch.from_numpy(np.asarray(obs))
            log_p, store.value[t] = network(store.obs[t])
            # Two actions: one uniform number decides.
            action = (torch.rand(n_envs) < log_p[:, 1].exp()).long()
            store.action[t], store.log_prob[t] = action, log_p.gather(1, action[:, None])[:, 0]
            obs, reward, done = vector.step(action.numpy().astype(np.int32) if variant == "envpool" else action.numpy())
            store.reward[t], store.going_on[t] = torch.from_numpy(reward), torch.from_numpy(~done)
        return n_envs * HORIZON

    def descend(part: tuple[torch.Tensor, ...]) -> None:
        rows_obs, action, old_log_prob, old_value, advantage = part
        log_p, value = network(rows_obs)
        log_prob = log_p.gather(1, action[:, None])[:, 0]
        error = (value - (old_value + advantage)).square().mean()
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        if work.learner == "ppo":
            ratio = (log_prob - old_log_prob).exp()
            policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        else:
            policy = -(log_prob * advantage).mean()
        optimizer.zero_grad()
        (policy + VALUE_COEF * error - ENTROPY_COEF * entropy).backward()
        nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
        optimizer.step()

    def train() -> int:
        steps = rollout()
        with torch.no_grad():
            advantage = advantages(store, network(torch.from_numpy(np.asarray(obs)))[1])
        rows = [x.flatten(0, 1) for x in (store.obs, store.action, store.log_prob, store.value, advantage)]
        for _ in range(work.epochs):
            if work.minibatches == 1:
                descend(tuple(rows))
                continue
            for part in torch.randperm(steps).chunk(work.minibatches):
                descend(tuple(x[part] for x in rows))
        return steps

    return (rollout if work.learner == "none" else train), f"torch eager, {threads} threads"
