"""Measure the launchers of sweeps, and the ways to step a slow simulator, and enter both tables into the docs.

    python scripts/engines.py engines [local] [psij] [submitit] [ray] [slurm] [--jobs 100] [--address HOST:PORT]
    python scripts/engines.py ways

A job of `engines` trains for a second: 50 steps of an environment that sleeps for 20 ms. Two jobs run at a time. `ray` needs a cluster of
two cores at an address, `slurm` one of two cores, both of this machine. The simulators of `ways` sleep as well, so that two cores are
enough for 16 of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import DOCS, ROOT, replace, settings, stop, table

PAGES = {"engines": DOCS / "sweeps.md", "ways": DOCS / "parallel.md"}
SLEEPY = ROOT / "scripts" / "exarl" / "sleepy.py"
FIXED = [
    *("env.module=./sleepy.py", "env.name=sleepy", "agent=a2c", "tuned=none", "device=cpu", "concurrency.threads=1"),
    *("eval.every=never", "eval.final_episodes=1", "eval.episodes=1", "stop_when_solved=false", "log.tensorboard=false"),
]
JOB = ["n_envs=1", "agent.horizon=50", "total_steps=50", "env.kwargs.step_ms=20", "concurrency.workers=0"]
WORKERS = 2
ENGINES = {
    "local": [f"launcher.workers={WORKERS}"],
    "psij": ["launcher=psij", f"launcher.workers={WORKERS}"],
    "submitit": ["launcher=submitit", f"launcher.workers={WORKERS}"],
    "ray": ["launcher=ray"],
    "slurm": ["launcher=slurm", "launcher.cpus=1"],
}
WAYS = {
    "one process": ["concurrency.workers=0"],
    "16 worker processes": ["concurrency.workers=16"],
    "4 actors with 4 worker processes each": ["concurrency=async", "concurrency.processes=5", "concurrency.workers=4"],
}
"""How 16 simulators are stepped -> the settings."""
STEPS = {1.0: (16_000, 5), 1000.0: (96, 1)}
"""Milliseconds of a step -> environment steps of a run, and steps of a rollout."""


def warprun(folder: Path, *words: str) -> None:
    """Run a command in a folder with the environment that sleeps. Exits if it fails."""
    shutil.copy(SLEEPY, folder)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "warprun", *words], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        stop(done.stderr.strip() or done.stdout)


def seconds(engine: str, jobs: int, address: str) -> float:
    """Return the seconds of a sweep by an engine, until its last job has ended."""
    with tempfile.TemporaryDirectory() as name:
        folder, began_s = Path(name), time.perf_counter()
        where = [f"launcher.address={address}"] if engine == "ray" else []
        warprun(folder, "-m", *FIXED, *JOB, f"seed=range(0,{jobs})", "sweep_dir=s", *ENGINES[engine], *where)
        while not all(ended(folder, number) for number in range(jobs)):
            time.sleep(0.2)
        return time.perf_counter() - began_s


def ended(folder: Path, number: int) -> bool:
    """Return whether a job has ended."""
    status = folder / "s" / "jobs" / f"{number:04}" / "status.json"
    return status.exists() and json.loads(status.read_text())["state"] == "finished"


def steps_per_s(way: list[str], step_ms: float) -> float:
    """Return the environment steps of a second of training, without its start and its evaluation."""
    steps, horizon = STEPS[step_ms]
    sizes = ["n_envs=16", f"agent.horizon={horizon}", f"env.kwargs.step_ms={step_ms}", f"total_steps={steps}", "log.every=10%"]
    with tempfile.TemporaryDirectory() as name:
        warprun(Path(name), *FIXED, *sizes, *way, "run_dir=run")
        rows = [json.loads(line) for line in Path(name, "run", "metrics.jsonl").read_text().splitlines()]
        return float((rows[-2]["env_steps"] - rows[0]["env_steps"]) / (rows[-2]["wall_s"] - rows[0]["wall_s"]))


def load() -> str:
    """Return the load average of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def main() -> None:
    given = settings(__doc__, "what", "engines*", choices={"what": ("engines", "ways")}, jobs=100, address="auto")
    before = load()
    if given.what == "engines":
        rows = []
        for engine in given.engines or ENGINES:
            began = load()
            rows.append((f"`{engine}`", f"{seconds(engine, given.jobs, given.address):.0f}", f"{began} to {load()}"))
            print(*rows[-1], flush=True)
        text = table(["launcher", f"{given.jobs} jobs of one second, two at a time, s", "load average"], rows)
    else:
        rows = []
        for name, way in WAYS.items():
            rows.append((name, *(f"{float(f'{steps_per_s(way, ms):.3g}'):,g}" for ms in STEPS)))
            print(*rows[-1], flush=True)
        text = table(["16 simulators, stepped by", *(f"steps of {ms:,g} ms, environment steps/s" for ms in STEPS)], rows)
    text += f"\n{os.cpu_count()} cores; load average {before} before, {load()} after.\n"
    replace(PAGES[given.what], given.what, text)


if __name__ == "__main__":
    main()
