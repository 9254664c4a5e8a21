"""Measure the time from a command to its end, with an empty cache of kernels and with a filled one.

    python scripts/bench/startup.py [--rounds 3] [KEY=VALUE ...]

The settings are those of the command; without any it is `warprun env=cartpole agent=a2c`, which ends when CartPole is
solved. Every round takes a new, empty cache, runs the command, and runs it again. The table has the medians of the
rounds: seconds on the clock, and seconds of processor time in all processes, which depend less on what else the machine
does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1]))

from common import children_cpu_s, settings, timed


def run(command: list[str], folder: str) -> tuple[float, float]:
    """Run the command with its cache and its output in `folder`; return seconds on the clock and of processor time."""
    environment = os.environ | {"WARPRUN_CACHE_DIR": folder}
    program = [sys.executable, "-m", "warprun", *command, f"output_root={folder}/outputs"]
    before = children_cpu_s()
    clock = timed(lambda: subprocess.run(program, env=environment, stdout=subprocess.DEVNULL, check=True))
    return clock, children_cpu_s() - before


def main() -> None:
    """Print the table."""
    chosen = settings(__doc__, "overrides*", rounds=3)
    command = chosen.overrides or ["env=cartpole", "agent=a2c"]
    print(f"warprun {' '.join(command)}: medians of {chosen.rounds}, load {os.getloadavg()[0]:.1f}")
    spent: dict[str, list[tuple[float, float]]] = {"empty cache": [], "filled cache": []}
    for _ in range(chosen.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for times in spent.values():
                times.append(run(command, folder))
    print(f"{'':14}{'seconds':>10}{'processor':>12}")
    for name, times in spent.items():
        print(f"{name:14}{''.join(f'{median(each):11.1f}' for each in zip(*times, strict=True))}")
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
