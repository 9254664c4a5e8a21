"""Mean return of a trained agent over whole episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from warprun import checkpoint, rundir
from warprun.build import make_agent, make_engine
from warprun.config import Config, from_dict
from warprun.engine.device import Device, choose
from warprun.engine.trajectory import Trajectory

MAX_STEPS = 10_000
"""Steps after which an evaluation ends where the environment has no time limit."""
EVALUATION_STREAM = 1 << 63
"""Sets the seed of evaluations apart from that of training."""


class Actor(Protocol):
    """What can act: an agent."""

    def act(self, trajectory: Trajectory, t: int) -> None:
        """Write `policy_output` and `value[t]` of every group."""


class Evaluator:
    """Plays a number of episodes, one in each of as many environments, apart from those of training."""

    def __init__(self, config: Config, device: Device, episodes: int, seed: int) -> None:
        self.engine = make_engine(config, device, n_envs=episodes, horizon=1, seed=seed ^ EVALUATION_STREAM)
        self.max_steps = self.engine.environment.time_limit or MAX_STEPS

    def play(self, agent: Actor, greedy: bool) -> dict[str, float]:
        """Return the mean return, its standard deviation over episodes, and the mean length; for several groups each its own, too.

        An episode counts until it first ends. `return` of several groups is the mean over groups.
        """
        engine, taken = self.engine, self.engine.trajectory
        engine.reset()
        going_on = torch.ones(engine.n_envs, device=engine.device.torch)
        length = torch.zeros_like(going_on)
        total = {name: torch.zeros_like(going_on) for name in taken.groups}
        for step in range(self.max_steps):
            agent.act(taken, 0)
            if greedy:
                engine.choose_best(0)
            else:
                engine.sample(0)
            engine.step(0)
            length += going_on
            for name, group in taken.groups.items():
                total[name] += going_on * group.reward[0].mean(-1)
            engine.carry_over()
            going_on *= ~(taken.terminated[0] | taken.truncated[0])
            # Asking the device whether all have ended makes it wait, so not at every step.
            if step % 16 == 15 and not going_on.any():
                break
        mean = {name: float(returns.mean()) for name, returns in total.items()}
        everyone = torch.stack(list(total.values())).mean(0)
        result = {"return": float(everyone.mean()), "return_std": float(everyone.std(correction=0)), "episode_length": float(length.mean())}
        if len(mean) > 1:
            result |= {f"{name}/return": value for name, value in mean.items()}
        return result


def evaluate_run(folder: Path, episodes: int, greedy: bool, device: str, seed: int) -> dict[str, float]:
    """Return what `Evaluator.play` does for the newest checkpoint of a run folder."""
    config = from_dict(rundir.read_config(folder))
    saved = checkpoint.load(folder)
    evaluator = Evaluator(config, choose(device), episodes, seed)
    agent = make_agent(config, evaluator.engine)
    agent.load(saved.tensors)
    return evaluator.play(agent, greedy)
