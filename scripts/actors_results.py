"""Train A2C with V-trace on CartPole with four ranks in every mode of learners and actors, and print a table for docs/actors.md.

    python scripts/actors_results.py [--seeds 5] [--modes async,rma,rma/range,rma/random,seed]

A run is solved if the mean return of fresh episodes less two standard errors reaches 475. Times are seconds of the whole command, with
imports and evaluations, on as many cores as there are.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SETTINGS = ["env=cartpole", "agent=a2c", "agent.advantage=vtrace", "n_envs=96", "agent.horizon=16", "total_steps=3e6", "device=cpu"]
QUIET = ["log.live=false", "log.tensorboard=false", "concurrency.processes=4"]


class Run(NamedTuple):
    solved: bool
    seconds: float
    env_steps: int
    lag: float
    """Mean of the last record."""


def train(mode: str, seed: int) -> Run:
    """Train once with `mode`, such as rma or rma/range."""
    name, _, window = mode.partition("/")
    chosen = [f"concurrency={name}", *([f"concurrency.window={window}"] if window else [])]
    with tempfile.TemporaryDirectory() as folder:
        run, began = Path(folder) / "run", time.perf_counter()
        given = [sys.executable, "-m", "warprun", *SETTINGS, *QUIET, *chosen, f"seed={seed}", f"run_dir={run}"]
        subprocess.run(given, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        took_s = time.perf_counter() - began
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        state = json.loads((run / "status.json").read_text())["state"]
    return Run(state == "solved", took_s, int(last["env_steps"]), last["actors/lag_mean"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--modes", default="async,rma,rma/range,rma/random,seed")
    given = parser.parse_args()
    print("| mode | solved | seconds, median (most) | env_steps, median | lag |\n|---|---|---|---|---|")
    for mode in given.modes.split(","):
        runs = [train(mode, seed) for seed in range(given.seeds)]
        seconds = [run.seconds for run in runs]
        steps, lag = (statistics.median(getattr(run, name) for run in runs) for name in ("env_steps", "lag"))
        solved = f"{sum(run.solved for run in runs)} of {len(runs)}"
        print(f"| `{mode}` | {solved} | {statistics.median(seconds):.0f} ({max(seconds):.0f}) | {steps:,.0f} | {lag:.1f} |", flush=True)


if __name__ == "__main__":
    main()
