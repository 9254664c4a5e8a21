"""Train the cases of a study over seeds, evaluate every run on episodes that it has not seen, and print a table.

    python scripts/results.py STUDY [--only CASE ...] [--seeds N] [--jobs N] [--threads N] [--minutes M] [--again]
                              [--write] [--dry-run]

The studies are in scripts/studies.py. Each run is `warprun KEY=VALUE ...` in its own process on CPU; --jobs of them run
at a time. Finished runs are kept in docs/benchmarks/results.json and not repeated while their settings stay the same,
except with --again; with --minutes no run starts after that time, so a study can be measured in several calls. --write
puts the table into its page. A run that fails counts as not solved.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import DOCS, FIXED_PPO, replace, settings
from studies import STUDIES, Run, Study

KEPT = DOCS / "benchmarks" / "results.json"
PROGRAM = """
import json, os, resource, statistics, subprocess, sys, time
import numpy as np
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
rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
found |= {"state": status["state"], "env_steps": status["env_steps"], "wall_s": round(status["wall_s"], 2)}
found |= {name: value for name, value in rows[-1].items() if name == "actors/lag_mean"}
ended = [(row["env_steps"], row["train/return"]) for row in rows if row.get("train/episodes") and "train/return" in row]
if ended:  # over environment steps, because records may lie apart unevenly
    steps, values = zip(*ended)
    found["training/return"] = float(np.interp(np.linspace(0.0, steps[-1], 200), steps, values).mean())
speeds = [row["perf/env_steps_per_s"] for row in rows if "perf/env_steps_per_s" in row]
if speeds:  # the first iteration compiles or loads kernels
    found["steps_per_s"] = statistics.median(speeds)
    found["training_s"] = status["wall_s"] - rows[0]["wall_s"] + rows[0]["env_steps"] / found["steps_per_s"]
found["load"] = os.getloadavg()[0]
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
        given = [
            "device=cpu",
            "log.live=false",
            "log.tensorboard=false",
            f"concurrency.threads={threads}",
            *(FIXED_PPO.split() if "agent=ppo" in overrides and "tuned=none" in overrides else []),  # nothing follows from the run
            *overrides.split(),
        ]
        command = [sys.executable, "-c", PROGRAM, json.dumps(study.evaluations), *given]
        if subprocess.run(command, cwd=folder).returncode:
            return {"failed": True}
        found: Run = json.loads((Path(folder) / "found.json").read_text())
        return found


def measure_missing(name: str, jobs: list[tuple[str, int]], kept: dict[str, Any], chosen: Namespace) -> None:
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


def main() -> None:
    """Run a study, print its table, and write it with --write."""
    chosen = settings(
        __doc__,
        "study",
        choices={"study": STUDIES},
        only=[],
        seeds=0,
        jobs=os.cpu_count() or 1,
        threads=1,
        minutes=1e9,
        again=False,
        write=False,
        dry_run=False,
    )
    study = STUDIES[chosen.study]
    unknown = set(chosen.only) - set(study.cases)
    if unknown:
        raise SystemExit(f"unknown case {min(unknown)!r}; there are: {', '.join(study.cases)}")
    cases = [case for case in study.cases if case in (chosen.only or study.cases)]
    if chosen.dry_run:
        print("\n".join(f"{case}: {study.cases[case].overrides}" for case in cases))
        return
    kept: dict[str, Any] = json.loads(KEPT.read_text())
    seeds = chosen.seeds or study.seeds
    measure_missing(chosen.study, [(case, seed) for case in cases for seed in range(seeds)], kept, chosen)
    table = study.table(runs_of(study, kept.get(chosen.study, {})))
    print(table)
    if chosen.write and study.place:
        replace(*study.place, table)


def runs_of(study: Study, kept: dict[str, dict[str, Run]]) -> dict[str, list[Run]]:
    """Return the kept runs of each case of a study that has some with its settings."""
    found = {}
    for case, given in study.cases.items():
        ordered = sorted(kept.get(case, {}).items(), key=lambda item: int(item[0]))
        same = [run for seed, run in ordered if run["overrides"] == f"{given.overrides} seed={seed}"]
        found |= {case: same} if same else {}
    return found


if __name__ == "__main__":
    main()
