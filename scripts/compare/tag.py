"""How often taggers catch runners: what `python scripts/results.py tag` measures of a run.

Taggers that are random, that pursue the nearest runner, and those of the run play against random runners and those of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from result_tables import RUNNERS, TAGGERS

from warprun.runs import checkpoint
from warprun.runs.build import Setup, make_engine, set_up
from warprun.runs.opening import load_checkpoint, open_run, trained_agent
from warprun.simulation.kernel_engine import KernelEngine

Choose = Callable[[KernelEngine], torch.Tensor]
"""-> logits of a group, [N, A, P]."""
EPISODES = 100
CERTAIN = 1e4
"""Logit of an action that is taken for certain; that of others is 0."""


def uniform(group: str) -> Choose:
    """Return a policy that takes all actions equally often."""
    return lambda engine: torch.zeros_like(engine.trajectory.groups[group].policy_output)


def pursuit_on_grid(engine: KernelEngine) -> torch.Tensor:
    """Move towards the runner along the axis with the larger distance."""
    taggers, runner = engine.state_of("taggers"), engine.state_of("runner")
    dx, dy = (runner[name].view(-1, 1) - taggers[name].view(engine.n_envs, -1) for name in ("x", "y"))
    along_x = torch.where(dx > 0, 1, 2)
    along_y = torch.where(dy > 0, 3, 4)
    action = torch.where(dx.abs() >= dy.abs(), along_x, along_y)
    return certain([torch.where((dx == 0) & (dy == 0), 0, action)], [5])


def pursuit_in_plane(engine: KernelEngine) -> torch.Tensor:
    """Turn towards the nearest runner in the game, and accelerate."""
    taggers, runners, n = engine.state_of("taggers"), engine.state_of("runners"), engine.n_envs
    dx, dy = (runners[name].view(n, 1, -1) - taggers[name].view(n, -1, 1) for name in ("x", "y"))
    away = (dx.square() + dy.square()).masked_fill(runners["alive"].view(n, 1, -1) == 0, math.inf)
    nearest = away.argmin(-1, keepdim=True)
    wanted = torch.atan2(dy.gather(-1, nearest), dx.gather(-1, nearest)).squeeze(-1) - taggers["direction"].view(n, -1)
    turns, accelerations = (torch.from_numpy(getattr(engine.tables, name)) for name in ("turns", "accelerations"))
    error = torch.remainder(turns - wanted[..., None] + math.pi, 2 * math.pi) - math.pi
    turn = error.abs().argmin(-1)
    return certain([torch.full_like(turn, int(accelerations.argmax())), turn], [len(accelerations), len(turns)])


def certain(actions: list[torch.Tensor], counts: list[int]) -> torch.Tensor:
    """Return the logits of choices [N, A] each, of `counts` actions."""
    parts = [CERTAIN * torch.nn.functional.one_hot(action.long(), count) for action, count in zip(actions, counts, strict=True)]
    return torch.cat(parts, -1).float()


class Caught(NamedTuple):
    """What taggers achieved in episodes [E]."""

    share: torch.Tensor
    """[E]: of the runners."""
    steps: torch.Tensor
    """[E]: length of the episodes."""


def play(setup: Setup, taggers: Choose, runners: Choose, episodes: int) -> Caught:
    """Play the first episode of each of `episodes` environments, with sampled actions."""
    engine = make_engine(setup, episodes, 1, setup.config.seed + 1000)
    engine.reset()
    first, second = (engine.trajectory.groups[group.name] for group in engine.spec.groups)
    runner_count = engine.spec.groups[1].size
    steps, playing = torch.zeros(episodes), torch.ones(episodes, dtype=torch.bool)
    tags = torch.zeros(episodes)
    in_plane = hasattr(engine.params, "tagging_distance")
    while playing.any():
        logits = taggers(engine), runners(engine)  # both before either is written: an agent writes those of all groups
        first.policy_output.copy_(logits[0])
        second.policy_output.copy_(logits[1])
        engine.sample(0)
        engine.step(0)
        steps += playing
        # Each tag gives one tagger the reward in the plane, and all of them on the grid.
        reward = (first.reward[0] - getattr(engine.params, "step_tagger", 0.0)).sum(1) if in_plane else first.reward[0, :, 0]
        tags += playing * torch.floor(reward / float(engine.params.tag_reward) + 0.5).clamp(min=0.0)
        playing &= ~engine.trajectory.terminated[0]
        engine.carry_over()
    return Caught(tags / runner_count, steps)


def measured(folder: Path) -> dict[str, float]:
    """Return of each pair of policies the percentage of runners that a run's policies catch, and the steps of an episode."""
    found = {}
    run = open_run(folder, "cpu", trusted=False, episodes=EPISODES)
    setup = set_up(run.config)
    agent = trained_agent(setup, load_checkpoint(run, checkpoint.LAST))

    def learned(group: str) -> Choose:
        def choose(engine: KernelEngine) -> torch.Tensor:
            agent.act(engine.trajectory, 0)
            return engine.trajectory.groups[group].policy_output.clone()

        return choose

    names = [group.name for group in setup.environment.spec.groups]
    pursuit = pursuit_in_plane if names[1] == "runners" else pursuit_on_grid
    hunters = dict(zip(TAGGERS, (uniform(names[0]), pursuit, learned(names[0])), strict=True))
    hunted = dict(zip(RUNNERS, (uniform(names[1]), learned(names[1])), strict=True))
    for taggers, first in hunters.items():
        for runners, second in hunted.items():
            played = play(setup, first, second, EPISODES)
            found[f"{taggers}, {runners}/caught"] = 100.0 * float(played.share.mean())
            found[f"{taggers}, {runners}/steps"] = float(played.steps.mean())
    return found
