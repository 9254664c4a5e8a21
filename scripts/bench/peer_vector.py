"""CartPole of gymnasium's vector environment (numpy) and of EnvPool (C++ threads) behind one interface, for torch and Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import numpy as np
from peer_work import TIME_LIMIT


class Vector:
    """`n_envs` CartPoles. Both libraries begin a new episode in the step after the end of the last one."""

    def __init__(self, library: str, n_envs: int, threads: int) -> None:
        self.n_envs = n_envs
        self.env: Any
        if library == "envpool":
            import envpool

            self.env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=n_envs, num_threads=threads)
        else:
            from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

            self.env = CartPoleVectorEnv(n_envs, max_episode_steps=TIME_LIMIT)

    def reset(self) -> np.ndarray:
        """Return the first observations [N, 4]."""
        return self.env.reset()[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return observations [N, 4], rewards [N] and whether episodes ended [N]."""
        obs, reward, terminated, truncated, _ = self.env.step(action)
        return obs, reward, terminated | truncated
