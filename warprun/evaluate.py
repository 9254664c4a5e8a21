"""Mean return of a trained agent over whole episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from warprun import checkpoint, rundir
from warprun.build import fuse, make_agent, make_engine
from warprun.config import Config, from_dict, load_environment
from warprun.engine.device import Device, choose
from warprun.recording import MAX_STEPS, Player
from warprun.records.tensorboard import write_images
from warprun.sentinel import refuse

CHUNK = 64
"""Steps between two looks at whether all episodes have ended."""
EVALUATION_STREAM = 1 << 63
"""Sets the seed of evaluations apart from that of training."""


class Evaluator:
    """Plays a number of episodes, one in each of as many environments, apart from those of training."""

    def __init__(self, config: Config, device: Device, agent: Any, episodes: int, seed: int) -> None:
        environment, _ = load_environment(config.env)
        self.max_steps = environment.time_limit or MAX_STEPS
        self.agent = agent
        self.engine = make_engine(
            config, device, episodes, min(CHUNK, self.max_steps), seed ^ EVALUATION_STREAM, exploration=agent.exploration
        )
        fuse(config, self.engine, agent)
        self.engine.compile()

    def play(self, greedy: bool) -> dict[str, float]:
        """Return the mean return, its standard deviation over episodes, the mean length, and the share of episodes that did not run into
        the time limit but terminated; for several groups each its own return, too.

        An episode counts until it first ends. `return` of several groups is the mean over groups.
        """
        engine, taken = self.engine, self.engine.trajectory
        engine.reset()
        going_on = torch.ones(engine.n_envs, dtype=torch.bool, device=engine.device.torch)
        length = torch.zeros(engine.n_envs, device=engine.device.torch)
        terminated = torch.zeros_like(going_on)
        total = {name: torch.zeros_like(length) for name in taken.groups}
        for _ in range(0, self.max_steps, taken.horizon):
            engine.collect(self.agent.act, greedy)
            refuse(engine.wait_for_fault(), "in an evaluation ")
            ends = taken.terminated | taken.truncated
            # The step that ends an episode still counts, those after it are the next one's.
            counts = going_on & (ends.cumsum(0) - ends.long() == 0)
            length += counts.sum(0)
            terminated |= (taken.terminated & counts).any(0)
            for name, group in taken.groups.items():
                total[name] += (group.reward.mean(-1) * counts).sum(0)
            going_on &= ~ends.any(0)
            if not going_on.any():
                break
        mean = {name: float(returns.mean()) for name, returns in total.items()}
        everyone = torch.stack(list(total.values())).mean(0)
        result = {"return": float(everyone.mean()), "return_std": float(everyone.std(correction=0)), "episode_length": float(length.mean())}
        result["terminated"] = float(terminated.float().mean())
        if engine.replaces:
            result["resets_on_nan"] = engine.replacements()
        if len(mean) > 1:
            result |= {f"{name}/return": value for name, value in mean.items()}
        return result


def evaluate_run(folder: Path, episodes: int, greedy: bool, device: str, seed: int, line: str = checkpoint.LAST) -> dict[str, float]:
    """Return what `Evaluator.play` does for the newest checkpoint of a run folder (or the best), and what the environment's report adds.

    An environment module that defines `report(play, folder)` is called with a `Player` and the run's folder `eval`, for files and figures;
    PNG files that it leaves there are shown by TensorBoard, too.
    """
    config = from_dict(rundir.read_config(folder))
    saved = checkpoint.load(folder, line)
    config.device = device
    where = choose(device)
    agent = make_agent(config, where)
    agent.load(saved.tensors)
    result = Evaluator(config, where, agent, episodes, seed).play(greedy)
    _, module = load_environment(config.env)
    report = getattr(module, "report", None)
    if report:
        (folder / "eval").mkdir(exist_ok=True)
        result |= report(Player(config, where, agent, seed), folder / "eval")
        write_images(folder / "eval")
    return result
