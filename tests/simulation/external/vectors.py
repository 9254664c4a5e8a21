"""Vectorized CartPoles in each mode of autoreset: `environment(num_envs, mode)`."""

import gymnasium
from gymnasium.vector import SyncVectorEnv


def environment(num_envs: int, mode: str = "SameStep") -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1", max_episode_steps=25)] * num_envs, autoreset_mode=mode)
