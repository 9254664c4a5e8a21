"""The time from command to end: trainings with an empty cache of kernels and with a filled one, and commands that train nothing.

`python scripts/reproduce.py --only startup` measures it. Every round takes a new, empty cache, runs the first command of the README, which
ends when CartPole is solved, runs it again, and then lists the environments, mistypes a key and asks for help.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from common import children_cpu_s, timed

TRAINING = ["env=cartpole", "n_envs=10000"]
MISTYPED = "n_env=1"
COMMANDS = {
    "`warprun env=cartpole n_envs=10000`, empty cache": TRAINING,
    "the same, filled cache": TRAINING,
    "`warprun envs`": ["envs"],
    "a mistyped key": ["env=cartpole", MISTYPED],
    "`warprun --help`": ["--help"],
}


def times() -> dict[str, dict[str, float]]:
    """Return seconds on the clock, and of processor time in all processes, of every command. Raises RuntimeError if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        return {name: _time([sys.executable, "-m", "warprun", *command], folder) for name, command in COMMANDS.items()}


def _time(program: list[str], folder: str) -> dict[str, float]:
    """Return the seconds of a program with its cache and its output in `folder`."""
    done: list[subprocess.CompletedProcess[str]] = []
    before, variables = children_cpu_s(), os.environ | {"WARPRUN_CACHE_DIR": folder}
    clock_s = timed(lambda: done.append(subprocess.run(program, env=variables, cwd=folder, capture_output=True, text=True)))
    if done[0].returncode != (2 if program[-1] == MISTYPED else 0):
        raise RuntimeError(f"startup: {' '.join(program)} has failed: {done[0].stderr.strip()}")
    return {"s": round(clock_s, 3), "cpu_s": round(children_cpu_s() - before, 3)}
