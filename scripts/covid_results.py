"""Compare runs of the COVID-19 economy with untrained, constant and optimized policies, and draw learning curves.

    warprun -m env=covid seed=0,1,2 sweep_dir=outputs/covid
    python scripts/covid_results.py outputs/covid/000* [--out docs/figures/covid_learning.png]

Returns are those of one episode: of the trained policies (sampled actions, mean and standard error of 400 episodes), of
their most probable actions, of one trained and one untrained group, and of level 1 and level 10 without subsidies. All
policies use the same random numbers, so gains have smaller standard errors than returns. "payments" is the mean subsidy
level. The second table is a reference for the governors: the highest return found with a constant subsidy (a choice
every 28 days, each improved in turn until no change helps). The figure needs matplotlib: pip install matplotlib.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import figure, head, row, settings

from warprun.config.schema import Config, from_dict
from warprun.runs import checkpoint, rundir
from warprun.runs.build import make_agent, make_engine, set_up
from warprun.runs.evaluation import Evaluator
from warprun.simulation.kernel_engine import KernelEngine
from warprun.state import restore

GROUPS = ("governors", "planner")
EPISODES = 400
COOLDOWN = 28
SUBSIDY_INTERVAL = 90
SMOOTHED = 10  # rollouts, in the figure
Returns = dict[str, float]
Episodes = dict[str, np.ndarray]
"""Per episode: the return of each group, and "payments", the mean subsidy level."""


def play(evaluator: Evaluator, greedy: bool = False) -> Episodes:
    """Play an episode in every environment; each call draws with the same random numbers."""
    engine, days = evaluator.simulator, evaluator.max_steps
    choices = -(-days // SUBSIDY_INTERVAL)
    engine.steps = 0
    engine.reset()
    total = dict.fromkeys((*GROUPS, "payments"), np.zeros(engine.n_envs))
    for day in range(0, days, engine.trajectory.horizon):
        taken = engine.collect(evaluator.agent.act, greedy).groups
        daily = {group: taken[group].reward.double().mean(-1) for group in GROUPS}
        daily["payments"] = taken["planner"].action[..., 0, 0] / choices  # 0 on days without a choice
        total = {name: total[name] + values[: days - day].sum(0).cpu().numpy() for name, values in daily.items()}
    return total


def returns(folder: Path) -> dict[str, Episodes]:
    """Return the returns of the policies of a run, by policy."""
    config = from_dict(rundir.read_config(folder))
    config.concurrency.threads = None  # the run may have had fewer cores
    setup = set_up(config)
    agent = make_agent(setup)
    evaluator = Evaluator(setup, agent, EPISODES, config.seed)
    policy, saved = agent.policy_state(), checkpoint.load(folder).tensors
    untrained = {name: tensor.clone() for name, tensor in policy.items()}
    trained = {name: saved[f"agent/{name}"] for name in policy}
    found = {"untrained": play(evaluator)}
    restore(policy, trained)
    found["trained"] = play(evaluator)
    found["trained - untrained"] = {name: values - found["untrained"][name] for name, values in found["trained"].items()}
    for group in GROUPS:
        restore(policy, {name: (trained if name.startswith(group) else untrained)[name] for name in trained})
        found[f"only {group} trained"] = play(evaluator)
    restore(policy, trained)
    # One episode: nothing is random.
    found["trained, most probable actions"] = play(Evaluator(setup, agent, 1, config.seed), greedy=True)
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
    """Draw the returns of training episodes: a panel for each group, with its runs and its reference `lines`."""
    with figure(file, 2, (8.4, 3.6)) as panels:
        for panel, group in zip(panels, GROUPS, strict=True):
            for folder, color in zip(folders, ("#0072b2", "#56b4e9", "#004a74", "#3f8fc4"), strict=False):
                steps, found = curve(folder, group)
                window = min(SMOOTHED, len(found))
                smooth = np.convolve(found, np.full(window, 1 / window), "valid")
                panel.plot(steps, found, color=color, linewidth=0.8, alpha=0.3)
                panel.plot(steps[window - 1 :], smooth, color=color, linewidth=1.6, label=f"training, {folder.name}")
            for (name, values), color in zip(lines[group].items(), ("#666666", "#e69f00", "#009e73"), strict=False):
                panel.axhline(values, color=color, linestyle="--", linewidth=1.2, label=name)
            panel.set(title=group, xlabel="environment steps", ylabel="return of an episode of 540 days")


def line(*cells: Any) -> str:
    """Return a row of a table; arrays are shown as mean and standard error."""
    return row(*(cell if isinstance(cell, str) else with_error(np.atleast_1d(cell)) for cell in cells))


def with_error(sample: np.ndarray) -> str:
    """Return the mean of a sample [N], and its standard error if N > 1."""
    mean = f"{sample.mean():.1f}"
    return f"{mean} ± {sample.std(ddof=1) / len(sample) ** 0.5:.1f}" if len(sample) > 1 else mean


def main() -> None:
    """Print tables, and draw."""
    chosen = settings(__doc__, "runs*", out="covid_learning.png")
    folders = list(map(Path, chosen.runs))
    if not folders:
        raise SystemExit("covid_results: which runs? warprun -m env=covid seed=0,1,2 sweep_dir=outputs/covid makes some")
    print(head("run", "policy", *GROUPS, "payments"))
    everything = []
    for folder in folders:
        everything.append(returns(folder))
        for name, values in everything[-1].items():
            print(line(folder.name, name, *values.values()), flush=True)
    replayed = Replayed(from_dict(rundir.read_config(folders[0])), 10)
    constants = {"always open": constant(replayed, 1), "always closed": constant(replayed, 10)}
    for name, values in constants.items():
        print(line("any", f"{name}, no subsidies", values["governors"], values["planner"], 0.0))
    print("\n" + head("subsidy level", "best governors found", "planner then"))
    for subsidy in (0, 9, 10, 20):
        values = best_response(replayed, subsidy)
        print(line(str(subsidy), values["governors"], values["planner"]), flush=True)
    print("\n" + head("discount of a day", "a month at level 1", 3, 5, 6, 7, 8, 10))
    for gamma in (0.98, 0.99, 0.998, 1.0):
        print(line(str(gamma), *month_at_another_level(replayed, gamma)[[0, 2, 4, 5, 6, 7, 9]]))
    lines = {group: {"untrained": float(np.mean([found["untrained"][group] for found in everything]))} for group in GROUPS}
    # Not for the governors, whose returns without payments are not comparable.
    lines["planner"] |= {name: values["planner"] for name, values in constants.items()}
    draw(folders, lines, Path(chosen.out))


if __name__ == "__main__":
    main()
