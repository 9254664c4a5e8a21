"""CartPole of gymnasium's vector environment (numpy), with A2C and PPO in torch and in Stable-Baselines3; sb3-contrib; off policy also SBX.

In torch: one trunk, whole batches. A2C and PPO of Stable-Baselines3 get vectorised environments, because its own DummyVecEnv steps them one
by one in Python; sb3-contrib gets DummyVecEnv.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import peer_work as spec
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from peer_work import Iterate, OffPolicy, Work
from torch import nn


class Vector:
    """`n_envs` CartPoles; a new episode begins in the step after the end of the last one."""

    def __init__(self, n_envs: int) -> None:
        self.n_envs = n_envs
        self.env = CartPoleVectorEnv(n_envs, max_episode_steps=spec.TIME_LIMIT)

    def reset(self) -> np.ndarray:
        """Return the first observations [N, 4]."""
        return self.env.reset()[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return observations [N, 4], rewards [N] and whether episodes ended [N]."""
        obs, reward, terminated, truncated, _ = self.env.step(action)
        return obs, reward, terminated | truncated


class Network(nn.Module):
    """Logits and value from one trunk."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(spec.FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, spec.ACTIONS + 1)
        )

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.layers(obs)
        return out[:, : spec.ACTIONS].log_softmax(-1), out[:, spec.ACTIONS]


class Store:
    """A rollout, [T, N, ...]."""

    def __init__(self, n_envs: int) -> None:
        shape = (spec.HORIZON, n_envs)
        self.obs = torch.zeros(*shape, spec.FEATURES)
        self.action = torch.zeros(shape, dtype=torch.int64)
        self.log_prob, self.value, self.reward, self.going_on = (torch.zeros(shape) for _ in range(4))


def advantages(store: Store, last: torch.Tensor) -> torch.Tensor:
    """Return generalised advantages [T, N]; a time limit counts as a termination."""
    found, advantage, following = torch.empty_like(store.value), torch.zeros_like(last), last
    for t in reversed(range(spec.HORIZON)):
        going_on = store.going_on[t]
        error = store.reward[t] + spec.GAMMA * following * going_on - store.value[t]
        advantage = error + spec.GAMMA * spec.LAMBDA * going_on * advantage
        found[t], following = advantage, store.value[t]
    return found


def prepare(work: Work, variant: str, n_envs: int, threads: int) -> tuple[Iterate, str]:
    """Return one iteration; there is one variant."""
    torch.set_num_threads(threads)
    vector, network, store = Vector(n_envs), Network(work.width), Store(n_envs)
    optimizer = torch.optim.Adam(network.parameters(), spec.LEARNING_RATE, eps=1e-5, foreach=True)
    obs = vector.reset()

    @torch.no_grad()
    def rollout() -> int:
        nonlocal obs
        for t in range(spec.HORIZON):
            store.obs[t] = torch.from_numpy(np.asarray(obs))
            log_p, store.value[t] = network(store.obs[t])
            # Two actions: one uniform number decides.
            action = (torch.rand(n_envs) < log_p[:, 1].exp()).long()
            store.action[t], store.log_prob[t] = action, log_p.gather(1, action[:, None])[:, 0]
            obs, reward, done = vector.step(action.numpy())
            store.reward[t], store.going_on[t] = torch.from_numpy(reward), torch.from_numpy(~done)
        return n_envs * spec.HORIZON

    def descend(part: tuple[torch.Tensor, ...]) -> None:
        rows_obs, action, old_log_prob, old_value, advantage = part
        log_p, value = network(rows_obs)
        log_prob = log_p.gather(1, action[:, None])[:, 0]
        error = (value - (old_value + advantage)).square().mean()
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        if work.learner == "ppo":
            ratio = (log_prob - old_log_prob).exp()
            policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - spec.CLIP, 1 + spec.CLIP) * advantage).mean()
        else:
            policy = -(log_prob * advantage).mean()
        optimizer.zero_grad()
        (policy + spec.VALUE_COEF * error - spec.ENTROPY_COEF * entropy).backward()
        nn.utils.clip_grad_norm_(network.parameters(), spec.MAX_NORM)
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

    return (rollout if work.learner == "none" else train), "torch eager"


# Stable-Baselines3 -----------------------------------------------------------------------------------------------------------------------


def adapted(vector: Vector) -> Any:
    """Return a `Vector` as Stable-Baselines3 expects its environments."""
    import gymnasium
    from stable_baselines3.common.vec_env import VecEnv

    class Environments(VecEnv):
        """Adapts a `Vector` to Stable-Baselines3."""

        def __init__(self) -> None:
            bound = np.full(spec.FEATURES, np.inf, np.float32)
            super().__init__(vector.n_envs, gymnasium.spaces.Box(-bound, bound), gymnasium.spaces.Discrete(2))
            # One dictionary for all: nothing is to be said of a step, and 10,000 new ones would cost as much as the step.
            self.infos: list[dict[str, Any]] = [{}] * vector.n_envs

        def reset(self) -> np.ndarray:
            return np.asarray(vector.reset())

        def step_async(self, actions: np.ndarray) -> None:
            self.actions = actions

        def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
            obs, reward, done = vector.step(self.actions)
            return np.asarray(obs), reward, done, self.infos

        def close(self) -> None:
            pass

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

    return Environments()


def prepare_sb3(work: Work | OffPolicy, variant: str, n_envs: int, threads: int) -> tuple[Iterate, str]:
    """Return one iteration; `variant` is the library: stable_baselines3, sb3_contrib or sbx."""
    torch.set_num_threads(threads)
    library = importlib.import_module(variant)
    return _off_policy(work, library) if isinstance(work, OffPolicy) else _on_policy(work, library, n_envs)


def _off_policy(work: OffPolicy, library: Any) -> tuple[Iterate, str]:
    """Return steps of one environment of Gymnasium with a gradient step each, the body of the loop of `learn`."""
    of_dqn = {"tau": 1.0, "target_update_interval": 250} if work.learner == "dqn" else {}
    agent: Any = getattr(library, work.learner.upper())(
        "MlpPolicy",
        {"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1"}[work.env],
        policy_kwargs={"net_arch": [work.width, work.width]},
        batch_size=spec.BATCH,
        buffer_size=spec.CAPACITY,
        learning_starts=spec.FILLED,
        gamma=spec.GAMMA,
        train_freq=1,
        gradient_steps=work.updates,
        device="cpu",
        **of_dqn,
    )
    agent.learn(spec.FILLED)
    _, callback = agent._setup_learn(10**12, reset_num_timesteps=False)
    asked = {"train_freq": agent.train_freq, "replay_buffer": agent.replay_buffer, "action_noise": agent.action_noise}

    def iterate() -> int:
        for _ in range(spec.TOGETHER):
            agent.collect_rollouts(agent.env, callback=callback, learning_starts=0, log_interval=None, **asked)
            agent.train(batch_size=spec.BATCH, gradient_steps=work.updates)
        return spec.TOGETHER

    return iterate, f"{work.learner.upper()} on {agent.env.envs[0].spec.id} of gymnasium"


def _on_policy(work: Work, library: Any, n_envs: int) -> tuple[Iterate, str]:
    """Return a rollout and its update; with memory with environments that are stepped one by one."""
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv

    one_by_one = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * n_envs) if work.units else None
    shared: dict[str, Any] = {
        "policy": "MlpPolicy",
        "env": one_by_one or adapted(Vector(n_envs)),
        "learning_rate": spec.LEARNING_RATE,
        "n_steps": work.horizon,
        "gamma": spec.GAMMA,
        "gae_lambda": spec.LAMBDA,
        "ent_coef": spec.ENTROPY_COEF,
        "vf_coef": spec.VALUE_COEF,
        "max_grad_norm": spec.MAX_NORM,
        "normalize_advantage": True,
        "policy_kwargs": {"net_arch": [work.width, work.width]},
        "device": "cpu",
    }
    of_ppo = {"batch_size": n_envs * work.horizon // work.minibatches, "n_epochs": work.epochs, "clip_range": spec.CLIP}
    agent: Any
    if work.units:
        agent = library.RecurrentPPO(**of_ppo, **shared | {"policy": "MlpLstmPolicy", "policy_kwargs": with_lstm(work)})
    elif work.learner == "ppo":
        agent = library.PPO(**of_ppo, **shared)
    else:
        agent = library.A2C(use_rms_prop=False, **shared)
    _, callback = agent._setup_learn(10**12)

    def iterate() -> int:
        agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, work.horizon)
        agent.train()
        return n_envs * work.horizon

    return iterate, f"{type(agent).__name__} with Adam on {'DummyVecEnv' if work.units else 'gymnasium'}"


def with_lstm(work: Work) -> dict[str, Any]:
    """Return the network of all peers with memory in sb3-contrib: hidden layers as extractor of features, one LSTM, no layers after it.

    With a shared LSTM the gradient of the value stops at it, so the learner computes a little less than the others.
    """
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Hidden(BaseFeaturesExtractor):
        """Two hidden layers."""

        def __init__(self, observation_space: Any) -> None:
            super().__init__(observation_space, work.width)
            layers = nn.Linear(spec.FEATURES, work.width), nn.Tanh(), nn.Linear(work.width, work.width), nn.Tanh()
            self.layers = nn.Sequential(*layers)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return self.layers(obs)  # type: ignore[no-any-return]

    one = {"lstm_hidden_size": work.units, "shared_lstm": True, "enable_critic_lstm": False}
    return {"features_extractor_class": Hidden, "net_arch": [], **one}
