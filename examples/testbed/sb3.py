"""Train PPO of Stable-Baselines3 with its default settings in an environment that warprun compiles, for a minute on one thread.

    python sb3.py env=forest n_envs=16 seed=0

The words are those of a run of warprun; of agent and network nothing is read. The policy is evaluated as warprun does: greedy episodes,
`eval.episodes` of them every three seconds, and `eval.final_episodes` where these reach the bar and at the end. It is solved, and ends, if
the mean of the latter less two standard errors reaches the bar. An update is not stopped by the end of the time. Rewards, observations and
actions are as the environment has them: the default settings scale nothing.
"""

import sys
import time

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

import warprun
from warprun.config.compose import compose
from warprun.config.schema import Config
from warprun.errors import UserError

SECONDS, EVERY_S = 60.0, 3.0
STEPS = 100_000_000


def made(config: Config, count: int) -> VecEnv:
    """Return environments with one thread."""
    env = config.env
    return warprun.make_sb3(env.name, count, params=env.params, options=env.options, time_limit=env.time_limit, threads=1)


class Evaluated:
    """Environments to evaluate a policy in, an episode in each."""

    def __init__(self, config: Config, episodes: int) -> None:
        self.envs, self.episodes = made(config, episodes), episodes
        self.envs.seed(10_000 + config.seed)

    def play(self, model: PPO) -> tuple[float, float]:
        """Return the mean return of greedy episodes, and its standard error."""
        seen, total, going_on = self.envs.reset(), np.zeros(self.episodes), np.ones(self.episodes, bool)
        while going_on.any():
            seen, reward, ends, _ = self.envs.step(model.predict(seen, deterministic=True)[0])
            total += going_on * reward
            going_on &= ~ends
        return float(total.mean()), float(total.std(ddof=1) / self.episodes**0.5)


class UntilSolved(BaseCallback):
    """Ends learning at the bar, or when the time is up."""

    def __init__(self, config: Config, bar: float) -> None:
        super().__init__()
        self.often, self.decisive = Evaluated(config, config.eval.episodes), Evaluated(config, config.eval.episodes_at_end)
        self.bar, self.began, self.due_s = bar, time.perf_counter(), EVERY_S
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
        return not self.solved and spent < SECONDS

    def _on_training_end(self) -> None:
        if not self.solved:
            self.decide()


def main() -> None:
    """Train as the command line says, and print the result."""
    config = compose(sys.argv[1:])
    if config.env.solved_at is None:
        raise UserError("env.solved_at=RETURN is missing: the environment has no bar")
    torch.set_num_threads(1)
    until = UntilSolved(config, config.env.solved_at)
    model = PPO("MlpPolicy", made(config, config.n_envs), seed=config.seed, device="cpu")
    model.learn(STEPS, callback=until)
    print(f"{'solved' if until.solved else 'not solved'}, return {until.result:.4g}, {model.num_timesteps:,} env_steps")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"sb3.py: {error}", file=sys.stderr)
        sys.exit(2)
