"""Train the environments of docs/results.md over seeds, evaluate every run on 2,000 fresh episodes, and write the tables.

    python scripts/results.py [--quick] [--only CASE ...] [--seeds 8] [--jobs N] [--dry-run]
    python scripts/results.py --robustness [--minutes 0.5] ...

Tables go to docs/results.md, the single runs to docs/benchmarks/results.json.

Each run is `warprun.train([...])` with one thread in its own process; `--jobs` of them run at a time (default: one per core). A run
counts as solved if the mean return of the 2,000 episodes reaches the bar. The run itself has seen none of these episodes. A run that
fails counts as not solved.

--robustness trains CartPole and Pendulum with untuned settings: PPO with its defaults, then with one setting changed. Every run ends
when it is solved or after `--minutes` of wall-clock time.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
EPISODES = 2000
CASES = {
    "cartpole_ppo": ["env=cartpole", "n_envs=10000"],
    "cartpole_a2c": ["env=cartpole", "agent=a2c", "n_envs=10000"],
    "acrobot_a2c": ["env=acrobot", "agent=a2c"],
    "acrobot_ppo": ["env=acrobot", "agent=ppo"],
    "pendulum_ppo": ["env=pendulum", "agent=ppo"],
    "mountain_car_continuous_ppo": ["env=mountain_car_continuous", "agent=ppo"],
    "acrobot_ppo_relu": ["env=acrobot", "agent=ppo", "agent.network.activation=relu"],
    "pendulum_ppo_relu": ["env=pendulum", "agent=ppo", "agent.network.activation=relu"],
}
"""Case -> overrides in addition to conf/tuned."""
ENVIRONMENTS = ("cartpole", "pendulum")
SETTINGS = {
    "defaults": [],
    "n_envs=1": ["n_envs=1"],
    "n_envs=16": ["n_envs=16"],
    "n_envs=100": ["n_envs=100"],
    "n_envs=10000": ["n_envs=10000"],
    "learning rate x 3": ["agent.learning_rate={3}"],
    "learning rate / 3": ["agent.learning_rate={1/3}"],
    "hidden=[256,256]": ["agent.network.hidden=[256,256]"],
    "horizon=128": ["agent.horizon=128"],
    "relu": ["agent.network.activation=relu"],
}
"""Untuned setting -> overrides; {x} stands for x times the default learning rate."""
LEARNING_RATE = 1e-3
"""Default learning rate of PPO."""
HEADER = """\
| case | bar | solved | mean return of the worst seed | of the median seed | env steps, median | wall s, median |
|---|---|---|---|---|---|---|
"""
PROGRAM = """
import json, sys
import warprun
from warprun.runtime import rundir
from warprun.runtime.evaluate import evaluate_run
result = warprun.train(sys.argv[3:])
config = rundir.read_config(result.folder)
found = evaluate_run(result.folder, int(sys.argv[2]), True, "cpu", 1)
json.dump({
    "seed": config["seed"],
    "status": result.status,
    "bar": config["env"]["solved_at"],
    "return": found["return"],
    "return_stderr": found["return_stderr"],
    "env_steps": result.env_steps,
    "wall_s": round(result.wall_s, 2),
}, open(sys.argv[1], "w"))
"""


def train(overrides: list[str]) -> dict[str, Any] | None:
    """Train and evaluate one run in its own process; return its numbers, or None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "result.json"
        quiet = ["device=cpu", "concurrency.threads=1", f"output_root={folder}/runs", "log.live=false"]
        command = [sys.executable, "-c", PROGRAM, str(found), str(EPISODES), *overrides, *quiet]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, cwd=folder)
        return json.loads(found.read_text()) if done.returncode == 0 and found.exists() else None


def solved(run: dict[str, Any]) -> bool:
    """Return whether the fresh episodes of a run reach the bar."""
    return run["return"] >= run["bar"]


def row(case: str, runs: list[dict[str, Any]], asked: int) -> str:
    """Return the table row of one case."""
    if not runs:
        return f"| {case} | | 0/{asked} | | | | |\n"
    ordered = sorted(runs, key=lambda run: run["return"])
    worst, median = (f"{run['return']:.1f} ± {run['return_stderr']:.1f}" for run in (ordered[0], ordered[len(ordered) // 2]))
    steps, wall = (statistics.median(run[key] for run in runs) for key in ("env_steps", "wall_s"))
    reached = sum(solved(run) for run in runs)
    return f"| {case} | {runs[0]['bar']:g} | {reached}/{asked} | {worst} | {median} | {steps:,.0f} | {wall:.1f} |\n"


def measure(cases: dict[str, list[str]], seeds: int, jobs: int) -> dict[str, list[dict[str, Any]]]:
    """Train every case with every seed; return the runs that did not fail."""

    def one(job: tuple[str, int]) -> dict[str, Any] | None:
        case, seed = job
        run = train([*cases[case], f"seed={seed}"])
        print(case, f"seed={seed}", run or "failed", flush=True)
        return run

    todo = [(case, seed) for case in cases for seed in range(seeds)]
    # The first seed of each case runs alone and compiles the kernels for the others.
    found = dict(zip(todo[::seeds], map(one, todo[::seeds]), strict=True))
    rest = [job for job in todo if job not in found]
    with ThreadPoolExecutor(jobs) as pool:
        found |= zip(rest, pool.map(one, rest), strict=True)
    return {case: [run for seed in range(seeds) if (run := found[case, seed])] for case in cases}


def robustness_cases(minutes: float) -> dict[str, list[str]]:
    """Return the cases of the table of untuned settings."""
    cases = {}
    for env in ENVIRONMENTS:
        for name, overrides in SETTINGS.items():
            scaled = [o.replace("{3}", f"{3 * LEARNING_RATE:.6g}").replace("{1/3}", f"{LEARNING_RATE / 3:.6g}") for o in overrides]
            common = [f"env={env}", "agent=ppo", "tuned=none", "total_steps=1e9", f"max_minutes={minutes}", "eval.every=2s"]
            cases[f"{env} {name}"] = [*common, *scaled]
    return cases


def robustness_table(runs: dict[str, list[dict[str, Any]]], seeds: int) -> str:
    """Return the table of untuned settings: number of solved seeds and the median return."""
    lines = ["| setting | " + " | ".join(ENVIRONMENTS) + " |", "|---|" + "---|" * len(ENVIRONMENTS)]
    for name in SETTINGS:
        cells = []
        for env in ENVIRONMENTS:
            made = runs[f"{env} {name}"]
            middle = f" ({statistics.median(run['return'] for run in made):.0f})" if made else ""
            cells.append(f"{sum(map(solved, made))}/{seeds}{middle}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(mark: str, table: str, data: dict[str, Any]) -> None:
    """Write a table into docs/results.md and its runs into docs/benchmarks/results.json."""
    page, kept = DOCS / "results.md", DOCS / "benchmarks" / "results.json"
    between = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", re.DOTALL)
    page.write_text(between.sub(lambda match: match[1] + table + match[2], page.read_text()))
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {mark: data}, indent=1) + "\n")


def main() -> int:
    """Run the cases, print and write the table; return 1 if a seed of a tuned case is not solved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed each; writes no files")
    parser.add_argument("--only", nargs="+", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--robustness", action="store_true", help="untuned settings")
    parser.add_argument("--minutes", type=float, default=0.5, help="of each run with --robustness")
    parser.add_argument("--dry-run", action="store_true", help="print the overrides of every case")
    chosen = parser.parse_args()
    cases = robustness_cases(chosen.minutes) if chosen.robustness else CASES
    unknown = set(chosen.only or ()) - set(cases)
    if unknown:
        parser.error(f"unknown case {min(unknown)!r}; there are: {', '.join(cases)}")
    cases = {case: overrides for case, overrides in cases.items() if case in (chosen.only or cases)}
    seeds = 1 if chosen.quick else chosen.seeds or (5 if chosen.robustness else 8)
    if chosen.dry_run:
        print("\n".join(f"{case}: {' '.join(overrides)}" for case, overrides in cases.items()))
        return 0
    found = measure(cases, seeds, chosen.jobs)
    whole = chosen.robustness and not chosen.only
    text = robustness_table(found, seeds) if whole else HEADER + "".join(row(case, runs, seeds) for case, runs in found.items())
    print(text)
    if not (chosen.quick or chosen.only):
        write("robustness" if chosen.robustness else "results", text, found)
    return int(not chosen.robustness and any(len(runs) < seeds or not all(map(solved, runs)) for runs in found.values()))


if __name__ == "__main__":
    sys.exit(main())
