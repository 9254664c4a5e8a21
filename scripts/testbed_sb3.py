"""PPO of Stable-Baselines3 with its default settings on the tasks of the test bed, described by the overrides of a run of warprun.

It steps the compiled environments (docs/api.md), learns for the wall time of the run, and is evaluated as warprun is: greedy episodes,
`eval.episodes` of them every `eval.every` and `eval.final_episodes` where these reach the bar and at the end; it is solved if the mean of
the latter less two standard errors reaches the bar. An update is not stopped by the end of the time. Observations, rewards and actions are
as the environment has them: the default settings scale nothing.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

import warprun
from warprun.config.compose import compose
from warprun.config.schema import Config, load_environment
from warprun.environment import Environment
from warprun.interop.sb3 import WarprunVecEnv

EVERY_S = 3.0
"""`eval.every` of the tasks that it can train."""


def expresses(overrides: str) -> bool:
    """Return whether Stable-Baselines3 has what an environment is: compiled, one actor, no masks."""
    environment, _ = load_environment(compose(overrides.split()).env)
    if not isinstance(environment, Environment):
        return False
    groups = environment.spec.groups
    return len(groups) == 1 and groups[0].size == 1 and not groups[0].masked


def made(config: Config, count: int) -> WarprunVecEnv:
    """Return environments with one thread."""
    env = config.env
    return warprun.make_sb3(env.name, count, params=env.params, options=env.options, time_limit=env.time_limit, threads=1)


class Evaluated:
    """Episodes of their own to evaluate a policy with."""

    def __init__(self, config: Config, episodes: int) -> None:
        self.envs, self.episodes = made(config, episodes), episodes
        self.envs.seed(10_000 + config.seed)

    def play(self, model: PPO) -> tuple[float, float]:
        """Return the mean return of a greedy episode in each environment, and its standard error."""
        seen, total, going_on = self.envs.reset(), np.zeros(self.episodes), np.ones(self.episodes, bool)
        while going_on.any():
            seen, reward, ends, _ = self.envs.step(model.predict(seen, deterministic=True)[0])
            total += going_on * reward
            going_on &= ~ends
        return float(total.mean()), float(total.std(ddof=1) / self.episodes**0.5)


class UntilSolved(BaseCallback):
    """Ends learning at the bar, or when the time is up."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.often, self.decisive = Evaluated(config, config.eval.episodes), Evaluated(config, config.eval.episodes_at_end)
        assert config.env.solved_at is not None and config.max_minutes is not None
        self.bar, self.limit_s = config.env.solved_at, 60.0 * config.max_minutes
        self.began, self.due_s = time.perf_counter(), EVERY_S
        self.result, self.solved = 0.0, False

    def decide(self) -> None:
        """Evaluate for the result."""
        self.result, error = self.decisive.play(self.model)
        self.solved = self.result - 2.0 * error >= self.bar

    def _on_training_start(self) -> None:
        self.began = time.perf_counter()

    def _on_step(self) -> bool:
        spent = time.perf_counter() - self.began
        if spent >= self.due_s:
            self.due_s = spent + EVERY_S
            if self.often.play(self.model)[0] >= self.bar:
                self.decide()
        return not self.solved and spent < self.limit_s

    def _on_training_end(self) -> None:
        if not self.solved:
            self.decide()


def measure(overrides: str) -> dict[str, Any]:
    """Train as `overrides` say; return the numbers of the run."""
    torch.set_num_threads(1)
    config = compose(overrides.split())
    until = UntilSolved(config)
    model = PPO("MlpPolicy", made(config, config.n_envs), seed=config.seed, device="cpu")
    model.learn(config.total_steps, callback=until)
    wall_s = time.perf_counter() - until.began
    return {"solved": until.solved, "return": until.result, "env_steps": model.num_timesteps, "wall_s": round(wall_s, 1)}
