"""Measure the time from command to end: trainings with an empty cache of kernels and with a filled one, and commands that train nothing.

    python scripts/bench/startup.py [--rounds 5] [--beside PYTHON] [KEY=VALUE ...]

The settings are those of the training; without any it is the first command of the README, `warprun env=cartpole
n_envs=10000`, which ends when CartPole is solved. Every round takes a new, empty cache, runs the training, runs it again,
and then lists the environments, mistypes a key and asks for help. The table has the medians of the rounds: seconds on
the clock, and seconds of processor time in all processes, which depend less on what else the machine does. `--beside`
names the Python of another installation of warprun, such as an older version: both are measured in turn.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1]))

from common import children_cpu_s, settings, timed

MISTYPED = "a mistyped key"
SHORT = {"warprun envs": ["envs"], MISTYPED: ["env=cartpole", "n_env=1"], "warprun --help": ["--help"]}
"""Commands that train nothing."""


def run(python: str, command: list[str], folder: str) -> tuple[float, float]:
    """Run a command with its cache and its output in `folder`; return seconds on the clock and of processor time."""
    environment = os.environ | {"WARPRUN_CACHE_DIR": folder}
    before = children_cpu_s()
    done: list[subprocess.CompletedProcess[str]] = []
    program = [python, "-m", "warprun", *command]
    clock = timed(lambda: done.append(subprocess.run(program, env=environment, cwd=folder, capture_output=True, text=True)))
    if done[0].returncode != (2 if command == SHORT[MISTYPED] else 0):
        sys.exit(f"startup: {' '.join(program)} has failed: {done[0].stderr.strip()}")
    return clock, children_cpu_s() - before


def main() -> None:
    """Print the table."""
    chosen = settings(__doc__, "overrides*", rounds=5, beside="")
    training = chosen.overrides or ["env=cartpole", "n_envs=10000"]
    pythons = {"": sys.executable} | ({" beside": chosen.beside} if chosen.beside else {})
    print(f"warprun {' '.join(training)}: medians of {chosen.rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
    spent: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for number in range(chosen.rounds):
        for which, python in list(pythons.items())[:: 1 if number % 2 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                commands = {"empty cache": training, "filled cache": training} | SHORT
                for name, command in commands.items():
                    spent[name + which].append(run(python, command, folder))
    print(f"{'':24}{'seconds':>10}{'processor':>12}")
    for name, times in sorted(spent.items()):
        print(f"{name:24}{''.join(f'{median(each):11.2f}' for each in zip(*times, strict=True))}")
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
