"""Stable-Baselines3, sb3-contrib and SBX. A2C and PPO get vectorised environments, others DummyVecEnv, which steps them in Python."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
import peer_work as spec
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from peer_work import Iterate, OffPolicy, Work
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import nn


class Environments(VecEnv):
    """CartPoles of Gymnasium's vector environment; a new episode begins in the step after the end of the last one."""

    def __init__(self, n_envs: int) -> None:
        bound = np.full(spec.FEATURES, np.inf, np.float32)
        super().__init__(n_envs, gymnasium.spaces.Box(-bound, bound), gymnasium.spaces.Discrete(spec.ACTIONS))
        self.env = CartPoleVectorEnv(n_envs, max_episode_steps=spec.TIME_LIMIT)
        # One dictionary for all: nothing is to be said of a step, and 10,000 new ones would cost as much as the step.
        self.infos: list[dict[str, Any]] = [{}] * n_envs

    def reset(self) -> np.ndarray:
        return np.asarray(self.env.reset()[0])

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, reward, terminated, truncated, _ = self.env.step(self.actions)
        return np.asarray(obs), reward, terminated | truncated, self.infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("no learner that is measured sets attributes of environments")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("no learner that is measured calls methods of environments")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


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
    one_by_one = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * n_envs) if work.units else None
    shared: dict[str, Any] = {
        "policy": "MlpPolicy",
        "env": one_by_one or Environments(n_envs),
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
