"""Train the COVID-19 economy over seeds, compare it to the untrained and constant policies, and draw the learning curves.

    python scripts/covid_results.py [--seeds 0,1,2] [--folder outputs/covid] [-o docs/figures/covid_learning.png] [OVERRIDE ...]

Each seed is a run of `warprun env=covid` with OVERRIDEs, in a process of its own; one whose folder is there is not trained again.
Returns are of one episode: of the policies as trained (sampled actions, the mean of 20 episodes), and of level 1 and level 10 without
subsidies.
The figure needs matplotlib: pip install "warprun[plot]".
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from warprun import checkpoint, rundir
from warprun.build import make_agent
from warprun.config import from_dict
from warprun.engine.device import choose
from warprun.evaluate import Evaluator
from warprun.recording import Player

GROUPS = ("governors", "planner")
PROGRAM = "import sys; from warprun.cli import run; sys.exit(run(sys.argv[1:]))"
EPISODES = 20


def train(folder: Path, seed: int, overrides: list[str]) -> None:
    """Train one run unless it is there."""
    if not (folder / "status.json").exists():
        given = ["env=covid", f"seed={seed}", f"run_dir={folder}", "log.live=false", *overrides]
        subprocess.run([sys.executable, "-c", PROGRAM, *given], check=True)


def returns(folder: Path) -> dict[str, dict[str, float]]:
    """Return what policies get, by policy and group."""
    config = from_dict(rundir.read_config(folder))
    device = choose(config.device)
    agent = make_agent(config, device)
    evaluator = Evaluator(config, device, agent, EPISODES, config.seed)

    def played() -> dict[str, float]:
        result = evaluator.play(greedy=False)
        return {group: result[f"{group}/return"] for group in GROUPS}

    found = {"untrained": played()}
    agent.load(checkpoint.load(folder).tensors)
    found["trained"] = played()
    player = Player(config, device, agent, config.seed)
    days = player.environment.time_limit or 0
    for name, level in (("always open", 1), ("always closed", 10)):
        actions = {"governors": np.full((days, 51, 1), level, np.int32), "planner": np.zeros((days, 1, 1), np.int32)}
        rewards = player(actions).rewards
        found[name] = {group: float(rewards[group].mean(1).sum()) for group in GROUPS}
    return found


def curve(folder: Path, group: str) -> tuple[list[float], list[float]]:
    """Return environment steps and the mean return of the training episodes that ended up to them."""
    records: list[dict[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ended = [record for record in records if record.get("train/episodes")]
    return [record["env_steps"] for record in ended], [record[f"train/{group}/return"] for record in ended]


def draw(folders: list[Path], constants: dict[str, dict[str, float]], file: Path) -> None:
    """Draw the returns of training episodes, a panel for each group and a line for each seed."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = pyplot.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    for panel, group in zip(panels, GROUPS, strict=True):
        for folder in folders:
            panel.plot(*curve(folder, group), color="#0072b2", alpha=0.7, label="training episodes" if folder == folders[0] else None)
        for (name, values), color in zip(constants.items(), ("#666666", "#e69f00", "#009e73"), strict=True):
            panel.axhline(values[group], color=color, linestyle="--", linewidth=1, label=name)
        panel.set_title(group, loc="left", fontsize=9)
        panel.set_xlabel("environment steps")
        panel.grid(alpha=0.2)
    panels[0].set_ylabel("return of an episode")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(file, dpi=150)


def main() -> int:
    """Train, print a table, draw; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--folder", type=Path, default=Path("outputs/covid"))
    parser.add_argument("-o", "--out", type=Path, default=Path("covid_learning.png"))
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    chosen = parser.parse_args()
    seeds = [int(seed) for seed in chosen.seeds.split(",")]
    folders = [chosen.folder / f"seed{seed}" for seed in seeds]
    print("| seed | policy | governors | planner |\n|---|---|---|---|")
    for seed, folder in zip(seeds, folders, strict=True):
        train(folder, seed, chosen.overrides)
        found = returns(folder)
        for name, values in found.items():
            print(f"| {seed} | {name} | {values['governors']:.1f} | {values['planner']:.1f} |", flush=True)
    constants = {name: found[name] for name in ("untrained", "always open", "always closed")}
    try:
        draw(folders, constants, chosen.out)
    except ImportError:
        print('no figure: matplotlib is missing; run: pip install "warprun[plot]"', file=sys.stderr)
        return 2
    print(chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
