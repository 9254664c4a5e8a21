"""Train every catalysis scenario over seeds and write the table of docs/catalysis.md.

    python scripts/catalysis_results.py [--only SCENARIO ...] [--seeds 5] [--threads N] [--write]

Each run is `warprun.train([...])` in a process of its own, one after the other, then evaluated: 1000 episodes with sampled actions, and
the greedy path against the exact optimum. Needs the published grids (warprun data catalysis).
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

PAGE = Path(__file__).parents[1] / "docs" / "catalysis.md"
TUNED = ["env=catalysis", "agent=ppo"]
CASES = {
    "lh": TUNED,
    "lh_lowbarrier": ["experiment=catalysis_lowbarrier"],
    "er1": TUNED,
    "er2": TUNED,
    "diffusion2d": TUNED,
    "diffusion3d": TUNED,
    "lh_fine": [*TUNED, "total_steps=2e7"],
    "er2_fine": [*TUNED, "total_steps=2e7"],
}
HEADER = """\
| scenario | solved | share of the optimum, min | success, sampled, min | steps of the path | highest energy above start, max \
| env steps | wall s, median | CPU s, median |
|---|---|---|---|---|---|---|---|---|
"""
PROGRAM = """
import json, sys, time
import warprun
from pathlib import Path
result = warprun.train(sys.argv[2:])
cpu = time.process_time()
from warprun.evaluate import evaluate_run
found = evaluate_run(result.folder, 1000, False, "cpu", 1)
found |= {"env_steps": result.env_steps, "wall_s": result.wall_s, "cpu_s": cpu}
json.dump(found, open(sys.argv[1], "w"))
"""


def train(overrides: list[str]) -> dict[str, Any] | None:
    """Train and evaluate one run in its own process and return what came of it, or None where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "result.json"
        command = [sys.executable, "-c", PROGRAM, str(found), *overrides, f"output_root={folder}/runs", "log.live=false"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        return json.loads(found.read_text()) if done.returncode == 0 and found.exists() else None


def solved(scenario: str, run: dict[str, Any]) -> bool:
    """Tell whether a run does what is asked of its scenario."""
    good = run["path/share_of_optimum"] >= 0.95 and run["terminated"] >= 0.99
    if scenario == "lh_lowbarrier":
        return good and run["path/highest_energy"] <= 0.54
    return good and (run["path/highest_energy"] <= 0.0 or not scenario.startswith("er"))


def row(scenario: str, runs: list[dict[str, Any]], asked: int) -> str:
    """Return the line of one scenario."""
    if not runs:
        return f"| {scenario} | 0/{asked} | | | | | | | |"

    def column(name: str) -> list[float]:
        return [run[name] for run in runs]

    steps = sorted({int(n) for n in column("path/steps")})
    return (
        f"| {scenario} | {sum(solved(scenario, run) for run in runs)}/{asked} | {min(column('path/share_of_optimum')):.3f} "
        f"| {min(column('terminated')):.3f} | {', '.join(map(str, steps))} | {max(column('path/highest_energy')):.3f} "
        f"| {statistics.median(column('env_steps')):,.0f} | {statistics.median(column('wall_s')):.0f} "
        f"| {statistics.median(column('cpu_s')):.0f} |"
    )


def main() -> int:
    """Run the cases and print the table; return 1 where a seed is not solved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="SCENARIO", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="CPU threads of a run (default: all cores)")
    parser.add_argument("--write", action="store_true", help="write the table into docs/catalysis.md")
    chosen = parser.parse_args()
    rows, all_solved = [], True
    for scenario in chosen.only:
        overrides = [*CASES[scenario], f"env.scenario={scenario}"]
        overrides += [f"concurrency.threads={chosen.threads}"] if chosen.threads else []
        runs = []
        for seed in range(chosen.seeds):
            run = train([*overrides, f"seed={seed}"])
            print(scenario, f"seed={seed}", run or "failed", flush=True)
            runs += [run] if run else []
        rows.append(row(scenario, runs, chosen.seeds))
        all_solved &= len(runs) == chosen.seeds and all(solved(scenario, run) for run in runs)
    table = HEADER + "\n".join(rows) + "\n"
    print(table)
    if chosen.write:
        between = re.compile(r"(<!-- results -->\n).*?(<!-- end -->)", re.DOTALL)
        PAGE.write_text(between.sub(lambda match: match[1] + table + match[2], PAGE.read_text()))
    return int(not all_solved)


if __name__ == "__main__":
    sys.exit(main())
