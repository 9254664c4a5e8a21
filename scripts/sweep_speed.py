"""Time a sweep of 32 CartPole seeds with one and with two local workers, in turn; print the ratio of the times.

python scripts/sweep_speed.py [REPEATS] [KEY=VALUE ...]      # settings of the runs, such as n_envs=1e4
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

SEEDS = 32
SETTINGS = ["env=cartpole", "device=cpu", "total_steps=1e6", "stop_when_solved=false", "log.tensorboard=false"]


def seconds(workers: int, settings: list[str]) -> float:
    """Return how long a sweep takes with so many workers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "warprun", "-m", *SETTINGS, *settings, f"seed=range(0,{SEEDS})", f"sweep_dir={folder}/sweep"]
        began = time.monotonic()
        subprocess.run([*command, f"launcher.workers={workers}"], check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - began


def main() -> None:
    """Time both in turn and print each pair."""
    repeats = int(sys.argv[1]) if sys.argv[1:] else 3
    seconds(1, [*sys.argv[2:], "total_steps=1e5"])  # compiles the kernels
    for _ in range(repeats):
        one, two = seconds(1, sys.argv[2:]), seconds(2, sys.argv[2:])
        print(f"{SEEDS} seeds: 1 worker {one:.1f} s, 2 workers {two:.1f} s, ratio {two / one:.2f}", flush=True)


if __name__ == "__main__":
    main()
