"""Train every catalysis scenario over seeds and write the tables of docs/benchmarks/catalysis.md.

    python scripts/catalysis_results.py FOLDER [--only CASE ...] [--seeds 5] [--threads N] [--write]

Each run is `warprun.train([...])` in its own process, one after the other. It is then evaluated on 1000 episodes with sampled actions, and
the greedy path is compared with the exact optimum of the lattice. Results are stored in FOLDER; existing ones are not trained again.
Needs the published grids (warprun data catalysis).
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

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "catalysis.md"
SCENARIOS = ("lh", "er1", "er2", "diffusion2d", "diffusion3d", "lh_fine", "er2_fine")
TUNED = {name: ["env=catalysis", "agent=ppo"] for name in (*SCENARIOS[:1], "lh_lowbarrier", *SCENARIOS[1:], "leps")}
TUNED["lh_lowbarrier"] = ["experiment=catalysis_lowbarrier"]
TUNED["lh_fine"] = TUNED["er2_fine"] = [*TUNED["lh"], "total_steps=1e7"]
CONTINUOUS = {f"lh {agent}": ["env=catalysis_continuous", f"agent={agent}"] for agent in ("ppo", "ddpg", "td3")}
PUBLISHED = {f"{name} published": ["experiment=catalysis_published"] for name in SCENARIOS}
for fine in ("lh_fine published", "er2_fine published"):
    PUBLISHED[fine] = [*PUBLISHED[fine], "agent.entropy_coef=0.2", "n_envs=500"]
"""The published settings, one seed each."""
TABLES = {"tuned": TUNED, "continuous": CONTINUOUS, "published": PUBLISHED}
CASES = TUNED | CONTINUOUS | PUBLISHED
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
from warprun.runtime.evaluate import evaluate_run
found = evaluate_run(result.folder, 1000, False, "cpu", 1)
found |= {"env_steps": result.env_steps, "wall_s": result.wall_s, "cpu_s": cpu}
json.dump(found, open(sys.argv[1], "w"))
"""


def train(kept: Path, overrides: list[str]) -> None:
    """Train and evaluate one run in its own process; store its numbers in `kept` unless it failed."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "result.json"
        command = [sys.executable, "-c", PROGRAM, str(found), *overrides, f"output_root={folder}/runs", "log.live=false"]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0:
            kept.write_text(found.read_text())


def results(folder: Path, case: str, seeds: int) -> list[dict[str, Any]]:
    """Return the stored numbers of the runs of a case."""
    files = [file_of(folder, case, seed) for seed in range(seeds)]
    return [json.loads(file.read_text()) for file in files if file.exists()]


def seeds_of(case: str, seeds: int) -> int:
    """Return the number of seeds of a case: 1 for published settings, else `seeds`."""
    return 1 if case in PUBLISHED else seeds


def file_of(folder: Path, case: str, seed: int) -> Path:
    """Return the file with the numbers of a run."""
    return folder / f"{case.replace(' ', '_')}_{seed}.json"


def solved(case: str, run: dict[str, Any]) -> bool:
    """Return whether a run meets the criteria of its scenario."""
    good = run["path/share_of_optimum"] >= 0.95 and run["terminated"] >= 0.99
    if case == "lh_lowbarrier":
        return good and run["path/highest_energy"] <= 0.54
    return good and (run["path/highest_energy"] <= 0.0 or not case.startswith("er"))


def row(case: str, runs: list[dict[str, Any]], asked: int) -> str:
    """Return the table row of one case."""

    def column(name: str) -> list[float]:
        return [run[name] for run in runs]

    steps = sorted({int(n) for n in column("path/steps")})
    return (
        f"| {case} | {sum(solved(case, run) for run in runs)}/{asked} | {min(column('path/share_of_optimum')):.3f} "
        f"| {min(column('terminated')):.3f} | {', '.join(map(str, steps))} | {max(column('path/highest_energy')):.3f} "
        f"| {statistics.median(column('env_steps')):,.0f} | {statistics.median(column('wall_s')):.0f} "
        f"| {statistics.median(column('cpu_s')):.0f} |"
    )


def main() -> int:
    """Run the cases and print the tables; return 1 if a seed with tuned settings is not solved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="CPU threads of a run (default: all cores)")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks/catalysis.md")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for case in chosen.only:
        overrides = [*CASES[case], f"env.scenario={case.split()[0]}"]
        overrides += [f"concurrency.threads={chosen.threads}"] if chosen.threads else []
        for seed in range(seeds_of(case, chosen.seeds)):
            kept = file_of(chosen.folder, case, seed)
            if not kept.exists():
                train(kept, [*overrides, f"seed={seed}"])
                print(case, f"seed={seed}", kept.read_text() if kept.exists() else "failed", flush=True)
    page, all_solved = PAGE.read_text(), True
    for name, cases in TABLES.items():
        runs = {case: results(chosen.folder, case, seeds_of(case, chosen.seeds)) for case in cases}
        table = HEADER + "\n".join(row(case, found, seeds_of(case, chosen.seeds)) for case, found in runs.items() if found) + "\n"
        print(table)
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = between.sub(lambda match, table=table: match[1] + table + match[2], page)
        if name != "published":
            all_solved &= all(sum(solved(case, run) for run in found) == chosen.seeds for case, found in runs.items())
    if chosen.write:
        PAGE.write_text(page)
    return int(not all_solved)


if __name__ == "__main__":
    sys.exit(main())
