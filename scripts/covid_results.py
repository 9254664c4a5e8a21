"""Train the COVID-19 economy over seeds, compare it with untrained, constant and optimized policies, and draw learning curves.

    python scripts/covid_results.py [--seeds 0,1,2] [--folder outputs/covid] [-o docs/figures/covid_learning.png] [OVERRIDE ...]

Each seed is a run of `warprun env=covid` with OVERRIDEs in its own process. A run whose folder exists is not trained again.
Returns are those of one episode: of the trained policies (sampled actions, mean and standard error of 400 episodes), of their most
probable actions, of one trained and one untrained group, and of level 1 and level 10 without subsidies. All policies use the same random
numbers, so gains have smaller standard errors than returns. "payments" is the mean subsidy level. The second table is a reference for the
governors: the highest return found with a constant subsidy (a choice every 28 days, each improved in turn until no change helps).
The figure needs matplotlib: pip install matplotlib.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from warprun.config.compose import compose
from warprun.config.schema import Config, from_dict
from warprun.runs import checkpoint, rundir
from warprun.runs.build import make_agent, make_engine, set_up
from warprun.runs.evaluation import Evaluator
from warprun.simulation.kernel_engine import KernelEngine
from warprun.state import restore

GROUPS = ("governors", "planner")
PROGRAM = "import sys; from warprun.cli.main import run; sys.exit(run(sys.argv[1:]))"
EPISODES = 400
COOLDOWN = 28
SUBSIDY_INTERVAL = 90
SMOOTHED = 10  # rollouts, in the figure
Returns = dict[str, float]
Episodes = dict[str, np.ndarray]
"""Per episode: the return of each group, and "payments", the mean subsidy level."""


def train(folder: Path, seed: int, overrides: list[str]) -> None:
    """Train one run unless its folder exists."""
    if not (folder / "status.json").exists():
        given = ["env=covid", f"seed={seed}", f"run_dir={folder}", "log.live=false", *overrides]
        subprocess.run([sys.executable, "-c", PROGRAM, *given], check=True)


def play(evaluator: Evaluator, greedy: bool = False) -> Episodes:
    """Play an episode in every environment; each call draws with the same random numbers."""
    engine, days = evaluator.simulator, evaluator.max_steps
    engine.steps = 0
    engine.reset()
    total = dict.fromkeys((*GROUPS, "payments"), np.zeros(engine.n_envs))
    for day in range(0, days, engine.trajectory.horizon):
        taken = engine.collect(evaluator.agent.act, greedy).groups
        daily = {group: taken[group].reward.double().mean(-1) for group in GROUPS}
        daily["payments"] = taken["planner"].action[..., 0, 0] / -(-days // SUBSIDY_INTERVAL)  # 0 on days without a choice
        total = {name: total[name] + values[: days - day].sum(0).cpu().numpy() for name, values in daily.items()}
    return total


def returns(folder: Path) -> dict[str, Episodes]:
    """Return the returns of the policies of a run, by policy."""
    config = from_dict(rundir.read_config(folder))
    config.concurrency.threads = None  # the run may have had fewer cores
    setup = set_up(config)
    agent = make_agent(setup)
    evaluator = Evaluator(setup, agent, EPISODES, config.seed)
    untrained = {name: tensor.clone() for name, tensor in agent.state().items()}
    trained = checkpoint.load(folder).tensors
    found = {"untrained": play(evaluator)}
    restore(agent, trained)
    found["trained"] = play(evaluator)
    found["trained - untrained"] = {name: values - found["untrained"][name] for name, values in found["trained"].items()}
    for group in GROUPS:
        restore(agent, {name: (trained if name.startswith(group) else untrained)[name] for name in trained})
        found[f"only {group} trained"] = play(evaluator)
    restore(agent, trained)
    found["trained, most probable actions"] = play(Evaluator(setup, agent, 1, config.seed), greedy=True)  # nothing is random
    return found


class Replayed:
    """Replays episodes of given actions, `n` at once."""

    def __init__(self, config: Config, n: int) -> None:
        self.days = config.env.time_limit or 540
        self.engine: KernelEngine = make_engine(set_up(config), n, self.days, 0)

    def rewards(self, levels: np.ndarray, subsidy: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rewards [T, N, 51] and [T, N] of levels [T, N, 51] and a constant subsidy."""
        groups = self.engine.trajectory.groups
        groups["governors"].action[..., 0] = torch.from_numpy(levels.astype(np.int32))
        groups["planner"].action.fill_(subsidy)
        self.engine.steps = 0
        self.engine.reset()
        self.engine.retrace()
        return groups["governors"].reward.double().numpy(), groups["planner"].reward[..., 0].double().numpy()

    def __call__(self, levels: np.ndarray, subsidy: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the returns, [N, 51] and [N]."""
        governors, planner = self.rewards(levels, subsidy)
        return governors.sum(0), planner.sum(0)


def best_response(replayed: Replayed, subsidy: int) -> Returns:
    """Return the returns of both groups with the best levels found for a constant subsidy."""
    n, windows = 10, -(-replayed.days // COOLDOWN)
    chosen, reached = np.full((windows, 51), 6), -np.inf
    for sweep in range(20):
        for window in np.random.default_rng(sweep).permutation(windows):
            tried = np.repeat(chosen[:, None], n, 1)
            tried[window] = np.arange(1, n + 1)[:, None]
            governors, planner = replayed(np.repeat(tried, COOLDOWN, 0)[: replayed.days], subsidy)
            best = governors.argmax(0)  # states do not infect each other, so each improves by itself
            chosen[window] = best + 1
        if governors.max(0).mean() - reached < 0.01:
            break
        reached = governors.max(0).mean()
    governors, planner = replayed(np.repeat(np.repeat(chosen[:, None], n, 1), COOLDOWN, 0)[: replayed.days], subsidy)
    return {"governors": float(governors[0].mean()), "planner": float(planner[0])}


def constant(replayed: Replayed, level: int) -> Returns:
    """Return the returns of a constant level without subsidies."""
    governors, planner = replayed(np.full((replayed.days, 10, 51), level), 0)
    return {"governors": float(governors[0].mean()), "planner": float(planner[0])}


def month_at_another_level(replayed: Replayed, gamma: float) -> np.ndarray:
    """Return the change of the return from day 61 on if days 61 to 88 are at level 1 to 10 instead of 6, [10]."""
    levels = np.full((replayed.days, 10, 51), 6)
    levels[60 : 60 + COOLDOWN] = np.arange(1, 11)[:, None]
    governors, _ = replayed.rewards(levels, 10)
    left = governors[60:].mean(2)
    changed: np.ndarray = gamma ** np.arange(len(left)) @ (left - left[:, 5:6])
    return changed


def curve(folder: Path, group: str) -> tuple[list[float], list[float]]:
    """Return environment steps and the mean return of the training episodes that ended up to them."""
    records: list[dict[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ended = [record for record in records if record.get("train/episodes")]
    return [record["env_steps"] for record in ended], [record[f"train/{group}/return"] for record in ended]


def draw(folders: list[Path], lines: dict[str, Returns], file: Path) -> None:
    """Draw the returns of training episodes: one panel per group, one line per seed, and the reference `lines` of each group."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = pyplot.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
    for panel, group in zip(panels, GROUPS, strict=True):
        for folder, color in zip(folders, ("#0072b2", "#56b4e9", "#004a74", "#3f8fc4"), strict=False):
            steps, found = curve(folder, group)
            panel.plot(steps, found, color=color, linewidth=0.8, alpha=0.3)
            window = min(SMOOTHED, len(found))
            smooth = np.convolve(found, np.full(window, 1 / window), "valid")
            panel.plot(steps[window - 1 :], smooth, color=color, linewidth=1.6, label=f"training, {folder.name.replace('seed', 'seed ')}")
        for (name, values), color in zip(lines[group].items(), ("#666666", "#e69f00", "#009e73"), strict=False):
            panel.axhline(values, color=color, linestyle="--", linewidth=1.2, label=name)
        panel.set_title(group, loc="left", fontsize=9)
        panel.set_xlabel("environment steps")
        panel.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:,.0f}k")
        panel.grid(alpha=0.2)
    panels[0].set_ylabel("return of an episode of 540 days")
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(file, dpi=150)


def line(*cells: Any) -> str:
    """Return a row of a table; arrays are shown as mean and standard error."""
    return "| " + " | ".join(cell if isinstance(cell, str) else with_error(np.atleast_1d(cell)) for cell in cells) + " |"


def with_error(sample: np.ndarray) -> str:
    """Return the mean of a sample [N], and its standard error if N > 1."""
    mean = f"{sample.mean():.1f}"
    return f"{mean} ± {sample.std(ddof=1) / len(sample) ** 0.5:.1f}" if len(sample) > 1 else mean


def main() -> int:
    """Train, print tables, draw; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--folder", type=Path, default=Path("outputs/covid"))
    parser.add_argument("-o", "--out", type=Path, default=Path("covid_learning.png"))
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    chosen = parser.parse_args()
    seeds = [int(seed) for seed in chosen.seeds.split(",")]
    folders = [chosen.folder / f"seed{seed}" for seed in seeds]
    print("| seed | policy | governors | planner | payments |\n|---|---|---|---|---|")
    everything = []
    for seed, folder in zip(seeds, folders, strict=True):
        train(folder, seed, chosen.overrides)
        everything.append(returns(folder))
        for name, values in everything[-1].items():
            print(line(str(seed), name, *values.values()), flush=True)
    replayed = Replayed(compose(["env=covid", *chosen.overrides]), 10)
    constants = {"always open": constant(replayed, 1), "always closed": constant(replayed, 10)}
    for name, values in constants.items():
        print(line("any", f"{name}, no subsidies", values["governors"], values["planner"], 0.0))
    print("\n| subsidy level | best governors found | planner then |\n|---|---|---|")
    for subsidy in (0, 9, 10, 20):
        values = best_response(replayed, subsidy)
        print(line(str(subsidy), values["governors"], values["planner"]), flush=True)
    print("\n| discount of a day | a month at level 1 | 3 | 5 | 6 | 7 | 8 | 10 |\n|---|---|---|---|---|---|---|---|")
    for gamma in (0.98, 0.99, 0.998, 1.0):
        print(line(str(gamma), *month_at_another_level(replayed, gamma)[[0, 2, 4, 5, 6, 7, 9]]))
    lines = {group: {"untrained": float(np.mean([found["untrained"][group] for found in everything]))} for group in GROUPS}
    # Not for the governors, whose returns without payments are not comparable.
    lines["planner"] |= {name: values["planner"] for name, values in constants.items()}
    try:
        draw(folders, lines, chosen.out)
    except ImportError:
        print("no figure: matplotlib is missing; run: pip install matplotlib", file=sys.stderr)
        return 2
    print(chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
