"""Train env=booster over seeds, compare it with regulators on the same disturbances, and write the tables of docs/booster.md.

    python scripts/booster_results.py [--folder outputs/booster] [--seeds 5] [--only CASE ...] [--threads N] [--write]

Runs whose results lie in FOLDER are not repeated. The last policy of each run plays EPISODES episodes, the same ones for all, with its most
probable actions. Regulators play them, too, with the changes of VIMIN that each action space allows. Their gains were found on other
episodes. The best linear regulator adds a prediction of the disturbance to what the plant makes of the past; no linear regulator of the
last 15 samples has a smaller mean of |IMINER|, as long as actions have no limits. Intervals are 95 %: of learned policies over seeds
(bootstrap), of regulators over episodes. --write also copies the figures of one run.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pages import DOCS, replace

import warprun
from warprun.config.compose import compose
from warprun.envs.booster import control
from warprun.envs.booster.control import Course, Episodes
from warprun.envs.booster.model import SEEN, respond
from warprun.report.statistics import interval, mean
from warprun.runs.build import make_engine, set_up
from warprun.runs.evaluation import evaluate_run
from warprun.state import derived_seed

EPISODES, SEARCHED = 1000, 500
"""Episodes that are compared, and those that gains are searched on."""
PLAYED, OTHERS = 1, 2
"""Their seeds."""
STEPS, HISTORY, WARM = 100, 15, 2
"""Steps of an episode, samples of an observation, and samples before the first known disturbance among them."""
CORRECTED = {
    "ppo": ["env=booster", "agent=ppo"],
    "dqn": ["env=booster", "agent=dqn"],
    "dqn lstm": [
        *("env=booster", "agent=dqn", "tuned=none", "n_envs=64", "total_steps=250000", "agent.horizon=4", "agent.learning_starts=6400"),
        *("agent.utd_ratio=0.02", "agent.batch_size=32", "agent.learning_rate_end=1e-5", "agent.gamma=0.9", "agent.network=lstm"),
        *("agent.replay.sequence=20", "agent.replay.burn_in=5"),
    ],
    "ppo, continuous": ["env=booster_continuous", "agent=ppo"],
    "td3, continuous": ["env=booster_continuous", "agent=td3"],
}
COMPAT = {
    "ppo, compat": [*CORRECTED["ppo"], "env.mode=compat", "total_steps=4e5"],
    "dqn, compat": [*CORRECTED["dqn"], "env.mode=compat", "total_steps=1e5"],
}
"""Agents need few steps to find the way out."""
CASES = CORRECTED | COMPAT
SHOWN = "ppo, continuous"
"""The case whose figures are copied."""


class Recorded(NamedTuple):
    """Episodes, and all that a regulator with an observation of HISTORY samples could know in them."""

    episodes: Episodes
    features: np.ndarray
    """[N, STEPS, F]: past disturbances and signals before each step, and a constant."""
    params: Any
    tables: Any
    limits: dict[str, control.Limit]
    """By action space."""


def record(count: int, seed: int, mode: str) -> Recorded:
    """Return the first `count` episodes of an evaluation with `seed`."""
    setup = {action: set_up(compose(["env=booster", f"env.action={action}", f"env.mode={mode}"])) for action in ("discrete", "continuous")}
    engine = make_engine(setup["continuous"], count, 1, derived_seed(seed, "eval"), auto_reset=False)
    engine.reset()
    p, tables, group = engine.params, engine.tables, engine.trajectory.groups["agent"]
    low, high = engine.spec.groups[0].action.bounds()[0]
    group.action.fill_(-(low + high) / (high - low))  # no change of VIMIN

    def state(name: str) -> np.ndarray:
        values: np.ndarray = engine.state_of("agent")[name].cpu().double().numpy().reshape(count)
        return values

    start = [state(name) for name in ("delta", "delta_1", "iminer", "iminer_1")]
    seen = group.obs[0, :, 0].cpu().double().numpy().reshape(count, HISTORY, SEEN)
    signals, disturbance = [*np.moveaxis(seen, 1, 0)], []
    for _ in range(STEPS):
        engine.step(0)
        disturbance.append(state("disturbance"))
        signals.append(group.obs[1, :, 0, -SEEN:].cpu().double().numpy())
        engine.carry_over()
    engine.close()
    episodes = Episodes(*start, np.stack(disturbance, 1))
    limits = {name: control.limit_of(each.environment.spec.groups[0].action, tables.changes) for name, each in setup.items()}
    return Recorded(episodes, features(np.stack(signals, 1), episodes.disturbance, p, tables), p, tables, limits)


def features(signals: np.ndarray, disturbance: np.ndarray, p: Any, tables: Any) -> np.ndarray:
    """Return the features [N, STEPS, F] of scaled signals [N, HISTORY + STEPS, SEEN] and the disturbance of each step [N, STEPS]."""
    delta, iminer = np.moveaxis(signals[:, :HISTORY, :2] / tables.scale[:2] + tables.shift[:2], 2, 0)
    before = iminer[:, 2:] - respond(delta[:, 2:], delta[:, 1:-1], delta[:, :-2], iminer[:, 1:-1], iminer[:, :-2], p)
    known = np.concatenate([before, disturbance], 1)  # from sample WARM on
    columns = [known[:, lag : lag + STEPS] for lag in range(HISTORY - WARM)]
    columns += [signals[:, lag : lag + STEPS, signal] for lag in range(HISTORY) for signal in range(2, SEEN)]
    return np.stack([*columns, np.ones_like(disturbance)], 2)


def regulators(searched: Recorded, played: Recorded, action: str) -> dict[str, Course]:
    """Return the courses of all regulators under the limits of an action space."""
    episodes, p, tables, limit = searched.episodes, searched.params, searched.tables, searched.limits[action]
    pid, quadratic = control.best_pid(episodes, p, tables, limit), control.best_quadratic(episodes, p, tables, limit)
    print(f"{action}: {pid}, {quadratic}", flush=True)
    weights = control.least_deviations(searched.features.reshape(-1, searched.features.shape[2]), episodes.disturbance.reshape(-1))
    chosen: dict[str, control.Regulator] = {
        "recorded regulator": control.recorded,
        "PI, published gains": control.Pid(),
        "PID, best gains": pid,
        "best quadratic regulator": quadratic,
        "best linear regulator": control.Predictive(p, played.features @ weights),
    }
    found = {name: control.run(each, played.episodes, p, tables, limit) for name, each in chosen.items()}
    return {"no control": control.run(control.none, played.episodes, p, tables)} | found


def place(folder: Path, case: str, seed: int) -> Path:
    """Return the folder of a run."""
    return folder / case.replace(", ", "_") / f"seed{seed}"


def train(folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Return the numbers of a run, which is trained and evaluated unless they exist. Raises UserError, TrainingFailed."""
    kept = folder / "result.json"
    if not kept.exists():
        shutil.rmtree(folder, ignore_errors=True)
        result = warprun.train([*overrides, f"run_dir={folder}", "log.live=false"])
        found = evaluate_run(folder, EPISODES, True, "cpu", PLAYED)
        kept.write_text(json.dumps(found | {"env_steps": result.env_steps, "wall_s": result.wall_s}))
    numbers: dict[str, Any] = json.loads(kept.read_text())
    return numbers


def over_episodes(values: np.ndarray) -> str:
    """Return mean and interval of numbers of episodes [N]."""
    return f"{values.mean():.2f} ± {1.96 * values.std(ddof=1) / len(values) ** 0.5:.2f}"


def over_seeds(runs: list[dict[str, Any]], name: str) -> str:
    """Return mean and interval of a number of each run."""
    value, low, high = interval(np.array([run[name] for run in runs]), mean)
    return f"{value:.2f} ({low:.2f} to {high:.2f})" if len(runs) > 1 else f"{value:.2f}"


def corrected_table(found: dict[str, dict[str, Course]], runs: dict[str, list[dict[str, Any]]]) -> str:
    """Return the table of returns; `found`: action space -> regulator -> course."""
    lines = ["| regulator | return, 30 actions | return, continuous action | seeds |", "|---|---|---|---|"]
    for name in found["discrete"]:
        cells = [over_episodes(courses[name].returns) for courses in found.values()]
        lines.append(f"| {name} | {' | '.join(cells)} | |")
    for case in CORRECTED:
        if runs.get(case):
            cells = ["", over_seeds(runs[case], "return")]
            shown = cells if "continuous" in case else cells[::-1]
            lines.append(f"| {case.partition(',')[0].upper()} | {' | '.join(shown)} | {len(runs[case])} |")
    return "\n".join(lines) + "\n"


def compat_table(found: dict[str, Course], runs: dict[str, list[dict[str, Any]]]) -> str:
    """Return the table of returns and lengths of `mode=compat`; `found`: regulator -> course."""
    lines = ["| regulator | return | mean length, steps | return per step | seeds |", "|---|---|---|---|---|"]
    for name, course in found.items():
        each = course.returns.sum() / course.length.sum()
        lines.append(f"| {name} | {over_episodes(course.returns)} | {course.length.mean():.1f} | {each:.3f} | |")
    for case in COMPAT:
        if runs.get(case):
            each = float(np.mean([run["return"] / run["episode_length"] for run in runs[case]]))
            cells = over_seeds(runs[case], "return"), over_seeds(runs[case], "episode_length"), f"{each:.3f}"
            lines.append(f"| {case.partition(',')[0].upper()} | {' | '.join(cells)} | {len(runs[case])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train, print tables, and write them with --write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("outputs/booster"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), metavar="CASE", help="; ".join(CASES))
    parser.add_argument("--threads", type=int, help="CPU threads of a run (default: all cores)")
    parser.add_argument("--write", action="store_true", help="write the tables and figures of docs/booster.md")
    chosen = parser.parse_args()
    threads = [f"concurrency.threads={chosen.threads}"] if chosen.threads else []
    runs: dict[str, list[dict[str, Any]]] = {}
    for seed in range(chosen.seeds):
        for case in chosen.only:
            found = train(place(chosen.folder, case, seed), [*CASES[case], f"seed={seed}", *threads])
            print(case, f"seed={seed}", {key: round(found[key], 3) for key in ("return", "episode_length", "wall_s")}, flush=True)
            runs.setdefault(case, []).append(found)
    searched, played = record(SEARCHED, OTHERS, "corrected"), record(EPISODES, PLAYED, "corrected")
    corrected = {action: regulators(searched, played, action) for action in played.limits}
    searched, played = record(SEARCHED, OTHERS, "compat"), record(EPISODES, PLAYED, "compat")
    compat = regulators(searched, played, "discrete")
    tables = {"corrected": corrected_table(corrected, runs), "compat": compat_table(compat, runs)}
    print("\n".join(tables.values()))
    if chosen.write:
        for mode, table in tables.items():
            replace(DOCS / "booster.md", mode, table)
        for figure in ("regulation", "spectrum"):
            shutil.copy(place(chosen.folder, SHOWN, 0) / "eval" / f"{figure}.png", DOCS / "figures" / f"booster_{figure}.png")


if __name__ == "__main__":
    main()
