"""Train the cases of a study over seeds, evaluate every run on episodes that it has not seen, and print the table of its page.

    python scripts/results.py STUDY [--only CASE ...] [--seeds N] [--jobs N] [--threads N] [--minutes M] [--again] [--write] [--dry-run]

The studies are in scripts/studies.py. Each run is `warprun KEY=VALUE ...` in its own process on CPU; --jobs of them run at a time. Finished
runs are kept in docs/benchmarks/results.json and not repeated while their settings stay the same, except with --again; with --minutes no
run starts after that time, so a study can be measured in several calls. --write puts the table into its page. A run that fails counts
as not solved. The exit code is 1 if a run that should be solved is not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pages import DOCS, replace
from studies import STUDIES, Run, Study

KEPT = DOCS / "benchmarks" / "results.json"
PROGRAM = """
import dataclasses, json, resource, subprocess, sys, time
from pathlib import Path
folder, evaluations, overrides = Path("run"), json.loads(sys.argv[1]), sys.argv[2:]
began = time.perf_counter()
subprocess.run([sys.executable, "-m", "warprun", *overrides, f"run_dir={folder}"], stdout=subprocess.DEVNULL, check=True)
found = {"command_s": round(time.perf_counter() - began, 2)}
used = resource.getrusage(resource.RUSAGE_CHILDREN)
found["cpu_s"] = round(used.ru_utime + used.ru_stime, 2)
from warprun.runs import rundir
from warprun.runs.evaluation import evaluate_run
status = json.loads((folder / "status.json").read_text())
last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
found |= {"state": status["state"], "env_steps": status["env_steps"], "wall_s": round(status["wall_s"], 2)}
found |= {name: value for name, value in last.items() if name == "actors/lag_mean"}
found["bar"] = rundir.read_config(folder)["env"]["solved_at"]
for line, episodes, greedy, seed in evaluations:
    checkpoints = "best" if line == "best" else "checkpoints"
    for name, value in evaluate_run(folder, episodes, greedy, "cpu", seed, checkpoints).items():
        found[f"{line}/{name}"] = value
Path("found.json").write_text(json.dumps(found))
"""
"""What a process of a run does in its own folder."""


def measure(study: Study, overrides: str, threads: int) -> Run:
    """Train and evaluate one run in its own process; return its numbers."""
    with tempfile.TemporaryDirectory() as folder:
        given = ["device=cpu", "log.live=false", "log.tensorboard=false", f"concurrency.threads={threads}", *overrides.split()]
        command = [sys.executable, "-c", PROGRAM, json.dumps(study.evaluations), *given]
        if subprocess.run(command, cwd=folder).returncode:
            return {"failed": True}
        found: Run = json.loads((Path(folder) / "found.json").read_text())
        return found


def measure_missing(name: str, jobs: list[tuple[str, int]], kept: dict[str, Any], chosen: argparse.Namespace) -> None:
    """Measure the jobs (case, seed) of a study that are not kept, and keep each as soon as it has ended."""
    study, deadline = STUDIES[name], time.monotonic() + 60 * chosen.minutes

    def one(job: tuple[str, int]) -> None:
        case, seed = job
        overrides = f"{study.cases[case].overrides} seed={seed}"
        runs = kept.setdefault(name, {}).setdefault(case, {})
        if (runs.get(str(seed), {}).get("overrides") == overrides and not chosen.again) or time.monotonic() > deadline:
            return
        runs[str(seed)] = measure(study, overrides, chosen.threads) | {"overrides": overrides}
        print(case, f"seed={seed}", runs[str(seed)], flush=True)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")

    # The first seed of each case runs alone and compiles the kernels for the others.
    for job in jobs:
        if job[1] == 0:
            one(job)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        list(pool.map(one, [job for job in jobs if job[1]]))


def main() -> int:
    """Run a study, print its table and write it with --write; return 1 if a run that should be solved is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--only", nargs="+", metavar="CASE")
    parser.add_argument("--seeds", type=int, help="as many as the study has")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: one per core)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a run (default: 1)")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--again", action="store_true", help="repeat what is kept")
    parser.add_argument("--write", action="store_true", help="write the table into its page")
    parser.add_argument("--dry-run", action="store_true", help="print the overrides of every case")
    chosen = parser.parse_args()
    study = STUDIES[chosen.study]
    unknown = set(chosen.only or ()) - set(study.cases)
    if unknown:
        parser.error(f"unknown case {min(unknown)!r}; there are: {', '.join(study.cases)}")
    cases = [case for case in study.cases if case in (chosen.only or study.cases)]
    if chosen.dry_run:
        print("\n".join(f"{case}: {study.cases[case].overrides}" for case in cases))
        return 0
    kept: dict[str, Any] = json.loads(KEPT.read_text())
    seeds = chosen.seeds or study.seeds
    measure_missing(chosen.study, [(case, seed) for case in cases for seed in range(seeds)], kept, chosen)
    runs = runs_of(study, kept.get(chosen.study, {}))
    table = study.table(runs)
    print(table)
    if chosen.write and study.place:
        replace(*study.place, table)
    asked = [case for case in cases if study.cases[case].should_be_solved]
    return int(any(sum(study.solved(case, run) for run in runs.get(case, [])) < seeds for case in asked))


def runs_of(study: Study, kept: dict[str, dict[str, Run]]) -> dict[str, list[Run]]:
    """Return the kept runs of each case of a study that has some with its settings."""
    found = {}
    for case, settings in study.cases.items():
        ordered = sorted(kept.get(case, {}).items(), key=lambda item: int(item[0]))
        same = [run for seed, run in ordered if run["overrides"] == f"{settings.overrides} seed={seed}"]
        found |= {case: same} if same else {}
    return found


if __name__ == "__main__":
    sys.exit(main())
