"""The games of tag: how often taggers catch runners, and what an actor costs.

    python scripts/tag_results.py [--rounds 5] [--out docs/figures/tag_scaling.png]

prints processor time of an actor's step, simulated alone and with training, and draws it beside the published speed of
WarpDrive. It measures processor time, and all settings in turn, because other work on the machine disturbs wall time.
The figure needs matplotlib.

`python scripts/results.py tag` trains; its runs are measured here: taggers that are random, that pursue the nearest
runner, and those of the run play against random runners and those of the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import Training, figure, in_turn, medians, settings, table, timed
from one_run import FOLDER, Task, trained

from warprun.runs import checkpoint
from warprun.runs.build import Setup, make_engine, set_up
from warprun.runs.opening import load_checkpoint, open_run, trained_agent
from warprun.simulation.kernel_engine import KernelEngine

Choose = Callable[[KernelEngine], torch.Tensor]
"""-> logits of a group, [N, A, P]."""
EPISODES = 100
CERTAIN = 1e4
"""Logit of an action that is taken for certain; that of others is 0."""

# Catches --------------------------------------------------------------------------------------------------------------


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


def measured(task: Task) -> dict[str, Any]:
    """Train a run; return its numbers, and of each pair of policies the percentage of runners caught and the steps of an episode."""
    found = trained(task)
    run = open_run(FOLDER, "cpu", trusted=False, episodes=EPISODES)
    setup = set_up(run.config)
    agent = trained_agent(setup, load_checkpoint(run, checkpoint.LAST))

    def learned(group: str) -> Choose:
        def choose(engine: KernelEngine) -> torch.Tensor:
            agent.act(engine.trajectory, 0)
            return engine.trajectory.groups[group].policy_output.clone()

        return choose

    names = [group.name for group in setup.environment.spec.groups]
    pursuit = pursuit_in_plane if names[1] == "runners" else pursuit_on_grid
    hunters: dict[str, Choose] = {"random": uniform(names[0]), "pursuit": pursuit, "trained": learned(names[0])}
    hunted: dict[str, Choose] = {"random": uniform(names[1]), "trained": learned(names[1])}
    for taggers, first in hunters.items():
        for runners, second in hunted.items():
            played = play(setup, first, second, EPISODES)
            found[f"{taggers}, {runners}/caught"] = 100.0 * float(played.share.mean())
            found[f"{taggers}, {runners}/steps"] = float(played.steps.mean())
    return found


# Cost -----------------------------------------------------------------------------------------------------------------

HORIZON = 16
PLANE = ((1000, 5), (50, 100), (5, 1000), (2, 1000))
"""Environments and actors."""
GRID = tuple((envs, 5) for envs in (1, 8, 64, 512, 4096))
PUBLISHED = (
    (1000, 2.9e9, "plane, 2,000 x 1,000, rollout, A100 (JMLR 23(316))"),
    (5, 1.4e6 * 5, "grid, 2,000 x 5, one GPU (tutorial 6, read off a plot)"),
)
"""WarpDrive: actors in an environment, actor steps per second."""
PLAIN = (
    "tuned=none",
    "device=cpu",
    "log.live=false",
    "eval.every=never",
    "eval.episodes=1",
    "eval.final_episodes=1",
    "agent.epochs=1",
)


def works(game: str, envs: int, actors: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return what measures an actor's step in ns of processor time of all threads: simulated alone, and with training.

    Runners stay in the plane, so that all actors work all the time.
    """
    taggers = max(1, actors // 11)
    sizes = [f"env.options.taggers={taggers}", f"env.options.runners={actors - taggers}", "env.params.exits=false"]
    options = sizes if game == "tag_continuous" else [f"env.options.taggers={actors - 1}"]
    rows = envs * actors * HORIZON
    minibatches = f"agent.minibatches={max(1, rows // 16384)}"
    training = Training(f"env={game}", f"n_envs={envs}", *PLAIN, *options, f"agent.horizon={HORIZON}", minibatches)
    engine = make_engine(training.setup, envs, HORIZON, 0)
    engine.prepare()

    def simulate() -> None:
        for step in range(HORIZON):
            engine.sample(step)
            engine.step(step)
        engine.carry_over()

    def per_step(work: Callable[[], object]) -> Callable[[], float]:
        repeats = max(1, 20000 // rows)
        return lambda: 1e9 * timed(lambda: [work() for _ in range(repeats)], time.process_time) / (repeats * rows)

    return per_step(simulate), per_step(training.iterate)


def cost(rounds: int, path: str) -> None:
    """Measure, print and draw."""
    rows = []
    for game, sizes in (("plane", PLANE), ("grid", GRID)):
        made = {size: works(f"tag_{'continuous' if game == 'plane' else 'gridworld'}", *size) for size in sizes}
        tasks = {(*size, kind): task for size, both in made.items() for kind, task in enumerate(both)}
        in_turn(tasks, 1)  # warms up
        found = medians(in_turn(tasks, rounds))
        rows += [(game, *size, found[*size, 0], found[*size, 1]) for size in sizes]
    shown = [(game, f"{envs:,}", f"{actors:,}", f"{alone:.0f}", f"{trained:.0f}") for game, envs, actors, alone, trained in rows]
    print(table(["game", "environments", "actors", "ns per actor step", "with training"], shown))
    many, few = (next(row[3:] for row in rows if row[:3] == ("plane", *size)) for size in ((1000, 5), (2, 1000)))
    print(f"2 x 1,000 against 1,000 x 5: {few[0] / many[0]:.2f}, with training {few[1] / many[1]:.2f}")
    if path:
        draw(rows, Path(path))


def draw(rows: list[tuple[str, int, int, float, float]], path: Path) -> None:
    """Draw actor steps per second of processor time by the actors of an environment, and by environments."""
    with figure(path, 2, (9, 3.6)) as (left, right):
        for kind, label in ((3, "simulation"), (4, "with training")):
            plane, grid = ([row for row in rows if row[0] == game] for game in ("plane", "grid"))
            left.plot([r[2] for r in plane], [1e9 / r[kind] for r in plane], "o-", label=f"warprun, plane, {label}")
            right.plot([r[1] for r in grid], [2e8 / r[kind] for r in grid], "o-", label=f"warprun, grid, {label}")
        for (actors, rate, label), mark in zip(PUBLISHED, "s^", strict=True):
            left.plot(actors, rate, mark, color="0.4", label=f"WarpDrive, {label}")
        right.plot(2000, 1.4e6, "^", color="0.4", label="WarpDrive, one GPU (tutorial 6, read off a plot)")
        left.set(xscale="log", yscale="log", xlabel="actors in an environment", ylabel="actor steps per core second")
        right.set(xscale="log", yscale="log", xlabel="environments of 5 actors", ylabel="environment steps per core second")


def main() -> None:
    """Measure what an actor costs."""
    given = settings(__doc__, rounds=5, out="")
    cost(given.rounds, given.out)


if __name__ == "__main__":
    main()
