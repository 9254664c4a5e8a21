"""Starts runs of several ranks with mpiexec, and reads their records."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from warprun.parallel.launch import mpiexec

HERE = Path(__file__).parent
QUIET = [
    "tuned=none",
    "device=cpu",
    "concurrency.threads=1",
    "log.live=false",
    "log.tensorboard=false",
    "eval.every=never",
    "eval.episodes=2",
]
QUIET += ["eval.final_episodes=2", "checkpoint.every=never", "stop_when_solved=false"]
SLEEPY = "name: sleepy\nmodule: ./sleepy.py\n"
"""Config file of the environment in sleepy.py."""
Record = dict[str, Any]


class Run(NamedTuple):
    """A training with `processes` ranks."""

    processes: int
    overrides: tuple[str, ...]


def ranks(number: int, program: list[str], folder: Path, **environment: str) -> str:
    """Run a Python program in `number` processes with one thread each; return what it prints. Raises SystemExit if it fails."""
    command = [mpiexec(), "-n", str(number), sys.executable, *program]
    given = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def train(runs: list[Run], **environment: str) -> Iterator[tuple[Run, list[Record]]]:
    """Train, those of the same number of ranks in turn; yield the records of each run. `env=sleepy` is known."""
    for processes in sorted({run.processes for run in runs}):
        same = [run for run in dict.fromkeys(runs) if run.processes == processes]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "conf" / "env").mkdir(parents=True)
            (folder / "conf" / "env" / "sleepy.yaml").write_text(SLEEPY)
            shutil.copy(HERE / "sleepy.py", folder)
            given = [[*run.overrides, *QUIET, f"run_dir={number}"] for number, run in enumerate(same)]
            (folder / "runs.json").write_text(json.dumps(given))
            ranks(processes, [str(HERE / "in_turn.py"), "runs.json"], folder, **environment)
            for number, run in enumerate(same):
                lines = (folder / str(number) / "metrics.jsonl").read_text().splitlines()
                yield run, [json.loads(line) for line in lines]
