"""The games of tag: how often taggers catch runners, and what an actor costs.

    python scripts/tag_results.py catch RUN [--episodes 200]
    python scripts/tag_results.py cost [--rounds 5] [--json docs/benchmarks/tag.json] [-o docs/figures/tag_scaling.png]

`catch` lets taggers that are random, that pursue the nearest runner, and those of a run play against random runners and those of the run.
Rates have 95 % intervals over episodes. `cost` prints processor time of an actor's step, simulated alone and with training, and draws it
beside the published speed of WarpDrive. It measures processor time, and all settings in turn, because other work on the machine disturbs
wall time. The figure needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from warprun.config.compose import compose
from warprun.runs import checkpoint
from warprun.runs.build import Setup, make_agent, make_engine, make_simulator, set_up
from warprun.runs.opening import load_checkpoint, open_run, trained_agent
from warprun.simulation.kernel_engine import KernelEngine

Choose = Callable[[KernelEngine], torch.Tensor]
"""-> logits of a group, [N, A, P]."""
CERTAIN = 1e4
"""Logit of an action that is taken for certain; that of others is 0."""

# Catches ---------------------------------------------------------------------------------------------------------------------------------


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


def catch(folder: Path, episodes: int) -> None:
    """Print the table of catches."""
    run = open_run(folder, "cpu", trusted=False, episodes=episodes)
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
    print(f"{folder}: {episodes} episodes, {run.config.env.name} {run.config.env.options or ''}")
    print("| taggers | runners | caught | steps of an episode |\n|---|---|---|---|")
    for taggers, first in hunters.items():
        for runners, second in hunted.items():
            found = play(setup, first, second, episodes)
            share, steps = (f"{x.mean():.3g} ± {1.96 * x.std() / math.sqrt(episodes):.2g}" for x in (100 * found.share, found.steps))
            print(f"| {taggers} | {runners} | {share} % | {steps} |", flush=True)


# Cost ------------------------------------------------------------------------------------------------------------------------------------

HORIZON = 16
PLANE = ((1000, 5), (50, 100), (5, 1000), (2, 1000))
"""Environments and actors."""
GRID = (1, 8, 64, 512, 4096)
"""Environments of five actors."""
PUBLISHED = (
    (1000, 2.9e9, "plane, 2,000 x 1,000, rollout, A100 (JMLR 23(316))"),
    (5, 1.4e6 * 5, "grid, 2,000 x 5, one GPU (tutorial 6, read off a plot)"),
)
"""WarpDrive: actors in an environment, actor steps per second."""


class Work(NamedTuple):
    """What is timed: steps of all actors, simulated alone and with training."""

    name: str
    game: str
    envs: int
    actors: int
    simulate: Callable[[], object]
    train: Callable[[], object]


def work(game: str, envs: int, actors: int) -> Work:
    """Prepare one setting. Runners stay in the plane, so that all actors work all the time."""
    taggers = max(1, actors // 11)
    sizes = [f"env.options.taggers={taggers}", f"env.options.runners={actors - taggers}", "env.params.exits=false"]
    options = sizes if game == "tag_continuous" else [f"env.options.taggers={actors - 1}"]
    minibatches = max(1, envs * actors * HORIZON // 16384)
    learning = [f"agent.horizon={HORIZON}", "agent.epochs=1", f"agent.minibatches={minibatches}"]
    plain = ["tuned=none", "device=cpu", "log.live=false", "eval.every=never", "eval.episodes=1", "eval.final_episodes=1"]
    setup = set_up(compose([f"env={game}", f"n_envs={envs}", *plain, *options, *learning]))
    engine = make_engine(setup, envs, HORIZON, 0)
    engine.prepare()
    agent = make_agent(setup)
    simulator = make_simulator(setup, envs, HORIZON, 0, agent)
    simulator.prepare()

    def simulate() -> None:
        for row in range(HORIZON):
            engine.sample(row)
            engine.step(row)
        engine.carry_over()

    def train() -> None:
        agent.update(simulator.collect(agent.act), 0.0)

    return Work(f"{game} {envs} x {actors}", game, envs, actors, simulate, train)


def processor_time(task: Callable[[], object]) -> float:
    """Return the seconds of processor time, of all threads, that `task` takes."""
    began = time.process_time()
    task()
    return time.process_time() - began


def cost(rounds: int, results: Path | None, figure: Path | None) -> None:
    """Measure, print, store and draw."""
    rows = []
    for game, settings in (("tag_continuous", PLANE), ("tag_gridworld", tuple((envs, 5) for envs in GRID))):
        made = [work(game, envs, actors) for envs, actors in settings]
        times: dict[str, tuple[list[float], list[float]]] = {each.name: ([], []) for each in made}
        for number in range(rounds + 1):
            for each in made:
                scale = 1e9 / (HORIZON * each.envs * each.actors)
                repeats = max(1, 20000 // (HORIZON * each.envs * each.actors))
                for kind, task in enumerate((each.simulate, each.train)):
                    spent = sum(processor_time(task) for _ in range(repeats)) / repeats * scale
                    if number:  # the first round warms up
                        times[each.name][kind].append(spent)
        for each in made:
            alone, trained = (statistics.median(spent) for spent in times[each.name])
            rows.append({"game": game, "envs": each.envs, "actors": each.actors, "step_ns": alone, "train_ns": trained})
    print("| game | environments | actors | ns per actor step | with training |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['game']} | {row['envs']:,} | {row['actors']:,} | {row['step_ns']:.0f} | {row['train_ns']:.0f} |")
    by_size = {(row["envs"], row["actors"]): row for row in rows if row["game"] == "tag_continuous"}
    for kind in ("step_ns", "train_ns"):
        print(f"2 x 1,000 against 1,000 x 5, {kind}: {by_size[2, 1000][kind] / by_size[1000, 5][kind]:.2f}")
    if results:
        results.write_text(json.dumps(rows, indent=1) + "\n")
    if figure:
        draw(rows, figure)


def draw(rows: list[dict[str, object]], figure: Path) -> None:
    """Draw actor steps per second of processor time by the actors of an environment, and by environments."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = page.subplots(1, 2)
    for kind, label in (("step_ns", "simulation"), ("train_ns", "with training")):
        plane = [row for row in rows if row["game"] == "tag_continuous"]
        left.plot([r["actors"] for r in plane], [1e9 / r[kind] for r in plane], "o-", label=f"warprun, plane, {label}")  # type: ignore[operator]
        grid = [row for row in rows if row["game"] == "tag_gridworld"]
        right.plot([r["envs"] for r in grid], [2e8 / r[kind] for r in grid], "o-", label=f"warprun, grid, {label}")  # type: ignore[operator]
    for (actors, rate, label), mark in zip(PUBLISHED, "s^", strict=True):
        left.plot(actors, rate, mark, color="0.4", label=f"WarpDrive, {label}")
    right.plot(2000, 1.4e6, "^", color="0.4", label="WarpDrive, one GPU (tutorial 6, read off a plot)")
    left.set(xscale="log", yscale="log", xlabel="actors in an environment", ylabel="actor steps per core second")
    right.set(xscale="log", yscale="log", xlabel="environments of 5 actors", ylabel="environment steps per core second")
    for axes in (left, right):
        axes.legend(fontsize=6.5)
        axes.spines[["top", "right"]].set_visible(False)
    page.savefig(figure, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    catching = commands.add_parser("catch")
    catching.add_argument("run", type=Path)
    catching.add_argument("--episodes", type=int, default=200)
    costing = commands.add_parser("cost")
    costing.add_argument("--rounds", type=int, default=5)
    costing.add_argument("--json", type=Path)
    costing.add_argument("-o", type=Path, dest="figure")
    given = parser.parse_args()
    if given.command == "catch":
        catch(given.run, given.episodes)
    else:
        cost(given.rounds, given.json, given.figure)


if __name__ == "__main__":
    main()
