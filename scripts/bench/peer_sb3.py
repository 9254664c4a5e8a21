"""Stable-Baselines3's A2C and PPO on vectorised environments, because its own DummyVecEnv steps them one by one in Python."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from peer_vector import Vector
from peer_work import (
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
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.vec_env import VecEnv


class Environments(VecEnv):
    """Adapts a `Vector` to Stable-Baselines3."""

    def __init__(self, vector: Vector) -> None:
        bound = np.full(FEATURES, np.inf, np.float32)
        super().__init__(vector.n_envs, gymnasium.spaces.Box(-bound, bound), gymnasium.spaces.Discrete(2))
        self.vector = vector
        # One dictionary for all: nothing is to be said of a step, and 10,000 new ones would cost as much as the step.
        self.infos: list[dict[str, Any]] = [{}] * vector.n_envs

    def reset(self) -> np.ndarray:
        return np.asarray(self.vector.reset())

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, reward, done = self.vector.step(self.actions)
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


def prepare(work: Work, variant: str, n_envs: int, threads: int) -> tuple[Iterate, str]:
    """Return one iteration; `variant` is the library of the environments."""
    torch.set_num_threads(threads)
    shared: dict[str, Any] = {
        "policy": "MlpPolicy",
        "env": Environments(Vector(variant, n_envs, threads)),
        "learning_rate": LEARNING_RATE,
        "n_steps": HORIZON,
        "gamma": GAMMA,
        "gae_lambda": LAMBDA,
        "ent_coef": ENTROPY_COEF,
        "vf_coef": VALUE_COEF,
        "max_grad_norm": MAX_NORM,
        "normalize_advantage": True,
        "policy_kwargs": {"net_arch": [work.width, work.width]},
        "device": "cpu",
    }
    if work.learner == "ppo":
        agent: Any = PPO(batch_size=n_envs * HORIZON // work.minibatches, n_epochs=work.epochs, clip_range=CLIP, **shared)
    else:
        agent = A2C(use_rms_prop=False, **shared)
    _, callback = agent._setup_learn(10**12)

    def iterate() -> int:
        agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, HORIZON)
        agent.train()
        return n_envs * HORIZON

    return iterate, f"{type(agent).__name__} with Adam on {variant}, {threads} threads"
