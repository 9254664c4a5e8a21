"""Mean return of a trained agent over whole episodes."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from warprun.config import kept
from warprun.config.schema import Config, from_dict, load_environment
from warprun.errors import UserError
from warprun.runtime import checkpoint, rundir
from warprun.runtime.build import fuse, make_agent, make_engine
from warprun.runtime.recording import Player
from warprun.runtime.records.tensorboard import write_images
from warprun.runtime.sentinel import refuse
from warprun.seeds import derived_seed
from warprun.simulation.device import Device, choose

CHUNK = 64
"""Steps between two looks at whether all episodes have ended."""


@dataclass(frozen=True)
class Evaluation:
    """What came of a number of episodes."""

    episodes: int
    mean_return: dict[str, float]
    """Per group, the mean over episodes of an actor's sum of rewards."""
    std_return: dict[str, float]
    """Standard deviation over episodes, with the divisor n - 1; NaN for one episode."""
    mean_length: float
    """Steps."""
    terminated: float
    """Share of the episodes that terminated, and did not run into the time limit."""
    unfinished: int | None
    """Episodes that were cut after `eval.max_steps` steps, with the rewards up to there; None where a time limit ends them all."""
    resets_on_nan: int | None
    """Environments that were replaced, whose episodes count up to there; None where none may be."""

    def stderr(self, group: str) -> float:
        """Return the standard error of a group's mean return; NaN for one episode."""
        return self.std_return[group] / math.sqrt(self.episodes)

    def metrics(self) -> dict[str, float]:
        """Return the numbers by name: `return`, or `GROUP/return` of several groups, whose mean would mean nothing."""
        found: dict[str, float] = {}
        for group, mean in self.mean_return.items():
            part = "" if len(self.mean_return) == 1 else f"{group}/"
            found[f"{part}return"] = mean
            if self.episodes > 1:
                found |= {f"{part}return_stderr": self.stderr(group), f"{part}return_std": self.std_return[group]}
        found |= {"episode_length": self.mean_length, "terminated": self.terminated, "episodes": self.episodes}
        optional = {"unfinished": self.unfinished, "resets_on_nan": self.resets_on_nan}
        return found | {name: count for name, count in optional.items() if count is not None}


class Evaluator:
    """Plays a number of episodes, one in each of as many environments, apart from those of training."""

    def __init__(self, config: Config, device: Device, agent: Any, episodes: int, seed: int) -> None:
        environment, _ = load_environment(config.env)
        self.endless = environment.time_limit is None
        self.max_steps = environment.time_limit or config.eval.max_steps
        self.agent = agent
        self.engine = make_engine(config, device, episodes, min(CHUNK, self.max_steps), seed, exploration=agent.exploration)
        fuse(config, self.engine, agent)
        self.engine.compile()

    def play(self, greedy: bool) -> Evaluation:
        """Play every environment's next episode to its end and return what came of them; no two calls play the same episodes."""
        engine, taken = self.engine, self.engine.trajectory
        engine.reset()
        going_on = torch.ones(engine.n_envs, dtype=torch.bool, device=engine.device.torch)
        length = torch.zeros(engine.n_envs, device=engine.device.torch)
        terminated = torch.zeros_like(going_on)
        total = {name: torch.zeros_like(length) for name in taken.groups}
        row = torch.arange(taken.horizon, device=engine.device.torch)[:, None]
        for first in range(0, self.max_steps, taken.horizon):
            engine.collect(self.agent.act, greedy)
            refuse(engine.wait_for_fault(), "in an evaluation ")
            ends = taken.terminated | taken.truncated
            # The step that ends an episode still counts, those after it are the next one's.
            counts = going_on & (ends.cumsum(0) - ends.long() == 0) & (row < self.max_steps - first)
            length += counts.sum(0)
            terminated |= (taken.terminated & counts).any(0)
            for name, group in taken.groups.items():
                total[name] += (group.reward.mean(-1) * counts).sum(0)
            going_on &= ~(ends & counts).any(0)
            if not going_on.any():
                break
        return Evaluation(
            engine.n_envs,
            {name: float(returns.double().mean()) for name, returns in total.items()},
            {name: float(returns.double().std()) if engine.n_envs > 1 else math.nan for name, returns in total.items()},
            float(length.mean()),
            float(terminated.float().mean()),
            int(going_on.sum()) if self.endless else None,
            engine.replacements() if engine.replaces else None,
        )


def describe_checkpoint(folder: Path, line: str) -> list[str]:
    """Say which checkpoint of a run folder `line` stands for, and whether the other line has a better one by the run's evaluations."""
    words = {checkpoint.LAST: "last", checkpoint.BEST: "best"}
    own = checkpoint.load(folder, line)
    said = [f"checkpoint: {words[line]}, after {own.env_steps:,} env_steps"]
    other = checkpoint.BEST if line == checkpoint.LAST else checkpoint.LAST
    with suppress(UserError):  # there need not be one
        there = checkpoint.load(folder, other)
        theirs, mine = (loaded.meta.get("evaluation", {}) for loaded in (there, own))
        error = math.hypot(theirs.get("stderr", 0.0), mine.get("stderr", 0.0))
        if theirs and mine and theirs["mean"] - mine["mean"] > 2.0 * error:
            said.append(
                f"the {words[other]} one, after {there.env_steps:,} env_steps, had a return of {theirs['mean']:.4g} in its evaluation,"
                f" this one {mine['mean']:.4g}: checkpoint={words[other]} evaluates it"
            )
    return said


def evaluate_run(folder: Path, episodes: int | None, greedy: bool, device: str, seed: int, line: str = checkpoint.LAST) -> dict[str, float]:
    """Return the metrics of an `Evaluation` of the newest checkpoint of a run folder (or the best), and what the environment's report adds.

    The episodes are others than those of the run's own evaluations, whatever its seed; None: as many as the run's final evaluation had.

    An environment module that defines `report(play, folder)` is called with a `Player` and the run's folder `eval`, for files and figures;
    PNG files that it leaves there are shown by TensorBoard, too.
    """
    config = from_dict(rundir.read_config(folder))
    own = kept.find(str(folder / kept.FOLDER))
    if own:
        config.env.module = str(own.folder)
        for difference in own.differences():
            print(difference)
    saved = checkpoint.load(folder, line)
    config.device = device
    where = choose(device)
    agent = make_agent(config, where)
    agent.load(saved.tensors)
    result = Evaluator(config, where, agent, episodes or config.eval.episodes_at_end, derived_seed(seed, "eval")).play(greedy).metrics()
    _, module = load_environment(config.env)
    report = getattr(module, "report", None)
    if report:
        (folder / "eval").mkdir(exist_ok=True)
        result |= report(Player(config, where, agent, derived_seed(seed, "report")), folder / "eval")
        write_images(folder / "eval")
    return result
