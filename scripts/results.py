"""Train the environments of docs/results.md over seeds, and write its table and docs/results.json.

    python scripts/results.py [--quick] [--only ENV_AGENT ...] [--threads N] [--dry-run]

Each run is `warprun.train([...])` in a process of its own, one after the other. A run that fails counts as not solved.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
CASES = {
    "cartpole_default": (["env=cartpole", "n_envs=10000"], range(8)),
    "acrobot_a2c": (["env=acrobot", "agent=a2c"], range(5)),
    "acrobot_ppo": (["env=acrobot", "agent=ppo"], range(5)),
    "pendulum_ppo": (["env=pendulum", "agent=ppo"], range(5)),
    "mountain_car_continuous_ppo": (["env=mountain_car_continuous", "agent=ppo"], range(5)),
}
HEADER = """\
| environment | agent | solved | greedy return, min | greedy return, median | env steps, median | wall s, median |
|---|---|---|---|---|---|---|
"""
PROGRAM = """
import json, sys
import warprun
from warprun import rundir
result = warprun.train(sys.argv[2:])
config = rundir.read_config(result.folder)
json.dump({
    "environment": config["env"]["name"],
    "agent": config["agent"]["name"],
    "seed": config["seed"],
    "status": result.status,
    "return": result.eval_return,
    "solved": result.eval_return is not None and result.eval_return >= config["env"]["solved_at"],
    "env_steps": result.env_steps,
    "wall_s": round(result.wall_s, 2),
}, open(sys.argv[1], "w"))
"""


def train(overrides: list[str]) -> dict[str, Any] | None:
    """Train one run in its own process and return what came of it, or None where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "result.json"
        command = [sys.executable, "-c", PROGRAM, str(found), *overrides, f"output_root={folder}/runs", "log.live=false"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        return json.loads(found.read_text()) if done.returncode == 0 and found.exists() else None


def row(runs: list[dict[str, Any]], asked: int, case: str) -> str:
    """Return the line of one case."""
    if not runs:
        return f"| {case} | | 0/{asked} | | | | |"
    returns = [run["return"] for run in runs]
    steps, wall = (statistics.median(run[key] for run in runs) for key in ("env_steps", "wall_s"))
    solved = sum(run["solved"] for run in runs)
    return (
        f"| {runs[0]['environment']} | {runs[0]['agent']} | {solved}/{asked} "
        f"| {min(returns):.1f} | {statistics.median(returns):.1f} | {steps:,.0f} | {wall:.1f} |"
    )


def main() -> int:
    """Run the cases, print and write the table; return 1 where a seed is not solved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed each; writes no files")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="ENV_AGENT", help=", ".join(CASES))
    parser.add_argument("--threads", type=int, help="CPU threads of a run (default: all cores)")
    parser.add_argument("--dry-run", action="store_true", help="print the overrides of every run")
    chosen = parser.parse_args()

    results: dict[str, list[dict[str, Any]]] = {}
    rows, all_solved = [], True
    for case in chosen.only:
        overrides, seeds = CASES[case]
        if chosen.quick:
            seeds = range(1)
        if chosen.threads:
            overrides = [*overrides, f"concurrency.threads={chosen.threads}"]
        if chosen.dry_run:
            print("\n".join(" ".join([*overrides, f"seed={seed}"]) for seed in seeds))
            continue
        runs = []
        for seed in seeds:
            run = train([*overrides, f"seed={seed}"])
            print(case, f"seed={seed}", run or "failed", flush=True)
            runs += [run] if run else []
        results[case] = runs
        rows.append(row(runs, len(seeds), case))
        all_solved &= sum(run["solved"] for run in runs) == len(seeds)
    if chosen.dry_run:
        return 0
    table = HEADER + "\n".join(rows) + "\n"
    print(table)
    if not chosen.quick and chosen.only == list(CASES):
        page = DOCS / "results.md"
        between = re.compile(r"(<!-- results -->\n).*?(<!-- end -->)", re.DOTALL)
        page.write_text(between.sub(lambda match: match[1] + table + match[2], page.read_text()))
        (DOCS / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    return int(not all_solved)


if __name__ == "__main__":
    sys.exit(main())
