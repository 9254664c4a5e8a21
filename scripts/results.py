"""Train the cases of a study over seeds, evaluate every run on episodes that it has not seen, and print a table.

    python scripts/results.py STUDY [--only CASE ...] [--seeds N] [--jobs N] [--threads N] [--minutes M] [--again]
                              [--write] [--dry-run]

The studies are in scripts/studies.py. --jobs processes (scripts/one_run.py) measure a run at a time each. Finished runs
are kept in docs/benchmarks/results.json and not repeated while their settings stay the same, except with --again; with
--minutes no run starts after that time, so a study can be measured in several calls. --write puts the table into its
page, and draws the figures of the study. A run that fails counts as not solved.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import LifoQueue

from common import DOCS, FIXED, ROOT, described, machine, replace, settings
from curves import draw
from filelock import FileLock
from studies import STUDIES
from study import Run, Study, runs_of

from warprun.files import write_atomic

KEPT = DOCS / "benchmarks" / "results.json"
LOCK = FileLock(Path(tempfile.gettempdir()) / "warprun_results.lock")
"""Studies may be measured at the same time."""


def not_derived(overrides: str) -> list[str]:
    """Return settings in the place of those that would follow from an untuned run of A2C or PPO; overrides come after them and win."""
    agents = [agent for agent in ("a2c", "ppo") if f"agent={agent}" in overrides and "tuned=none" in overrides]
    return " ".join(FIXED[agent] for agent in agents).split()


class Worker:
    """A process that measures runs of a study, one after the other; one that dies is replaced."""

    def __init__(self, study: Study) -> None:
        task = {"measure": study.measure, "evaluations": study.evaluations, "curves": study.curves}
        self.command = [sys.executable, str(ROOT / "scripts" / "one_run.py"), json.dumps(task)]
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, overrides: str, threads: int) -> Run:
        """Return the numbers of a run, and the machine."""
        given = [
            "device=cpu",
            "log.live=false",
            "log.tensorboard=false",
            f"concurrency.threads={threads}",
            *not_derived(overrides),
            *overrides.split(),
        ]
        if self.process is None:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(given) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        found: Run = json.loads(answer) if answer else {"failed": True}
        if not answer:
            self.process.wait()
            self.process = None
        return found | {"machine": described(machine())}

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.communicate()


def keep(name: str, case: str, seed: int, run: Run) -> None:
    """Write the numbers of a run of a study beside those that are kept; lists of numbers are lines."""
    with LOCK:
        kept = json.loads(KEPT.read_text())
        kept.setdefault(name, {}).setdefault(case, {})[str(seed)] = run
        text = re.sub(r"\[\s([^\[\]{}\"]*)\s\]", lambda found: f"[{' '.join(found[1].split())}]", json.dumps(kept, indent=1))
        write_atomic(KEPT, f"{text}\n".encode())


def measure_missing(name: str, jobs: list[tuple[str, int]], chosen: Namespace) -> None:
    """Measure the jobs (case, seed) of a study that are not kept, and keep each as soon as it has ended."""
    study, deadline = STUDIES[name], time.monotonic() + 60 * chosen.minutes
    kept = json.loads(KEPT.read_text()).get(name, {})

    def one(job: tuple[str, int]) -> None:
        case, seed = job
        overrides = f"{study.cases[case].overrides} seed={seed}"
        known = kept.get(case, {}).get(str(seed), {}).get("overrides") == overrides
        if (known and not chosen.again) or time.monotonic() > deadline:
            return
        worker = workers.get()
        try:
            run = worker(overrides, chosen.threads) | {"overrides": overrides}
        finally:
            workers.put(worker)
        keep(name, case, seed, run)
        print(case, f"seed={seed}", {key: value for key, value in run.items() if not key.startswith("curve/")}, flush=True)

    workers: LifoQueue[Worker] = LifoQueue()
    for _ in range(chosen.jobs):
        workers.put(Worker(study))
    # The first seed of each case runs alone and compiles the kernels for the others.
    for job in jobs:
        if job[1] == 0:
            one(job)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        list(pool.map(one, [job for job in jobs if job[1]]))
    while not workers.empty():
        workers.get().close()


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
    seeds = chosen.seeds or study.seeds
    measure_missing(chosen.study, [(case, seed) for case in cases for seed in range(seeds)], chosen)
    runs = runs_of(study, json.loads(KEPT.read_text()).get(chosen.study, {}))
    table = study.table(runs)
    print(table)
    if chosen.write and study.place:
        replace(*study.place, table)
    for picture in study.pictures if chosen.write else ():
        draw(picture, runs)


if __name__ == "__main__":
    main()
