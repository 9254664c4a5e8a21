"""The launcher `slurm`: one job array with a task for each job of a sweep. No torch."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from warprun.errors import UserError, printable
from warprun.files import read_json, write_atomic
from warprun.sweeps.launch import SlurmConfig
from warprun.sweeps.plan import Job, Plan

FOLDER = "slurm"
SCRIPT, SUBMITTED = "array.sbatch", "submitted.json"
ANSWER_S = 60
"""Seconds in which sbatch and squeue must answer."""


def check_program() -> None:
    """Raise UserError if jobs cannot be submitted from here."""
    if shutil.which("sbatch") is None:
        raise UserError("launcher=slurm: there is no sbatch here; call the command on a login node, or write launcher=local")


def submit(plan: Plan, jobs: Sequence[Job], config: SlurmConfig, trusted: bool) -> str:
    """Write the script of the array and submit it; return the number of the SLURM job.

    `trusted`: the code of its jobs may run even if no command of this user planned them. Raises UserError.
    """
    folder = plan.folder / FOLDER
    queued = _queued(folder)
    if queued:
        raise UserError(f"job array {queued} of this sweep is still queued or running; wait for its end, or `scancel {queued}`")
    folder.mkdir(exist_ok=True)
    path = folder / SCRIPT
    write_atomic(path, script(plan, jobs, config, trusted).encode())
    path.chmod(0o755)
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(path)], cwd=plan.working_folder, capture_output=True, text=True, timeout=ANSWER_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"sbatch does not answer: {printable(error)}; {path} is the script") from None
    if done.returncode:
        raise UserError(f"sbatch refuses the job array: {printable(done.stderr.strip() or done.stdout.strip())}")
    number = done.stdout.strip().split(";")[0]
    write_atomic(folder / SUBMITTED, json.dumps({"job": number}).encode() + b"\n")
    return number


def script(plan: Plan, jobs: Sequence[Job], config: SlurmConfig, trusted: bool = False) -> str:
    """Return the script of an array over `jobs`, whose tasks have the numbers of the jobs."""
    folder = plan.folder.absolute()
    limit = f"%{config.array_limit}" if config.array_limit else ""
    given = {
        "job-name": f"warprun-{folder.name}",
        "array": ranges([job.number for job in jobs]) + limit,
        "partition": config.partition,
        "account": config.account,
        "time": config.time,
        "nodes": 1,
        "ntasks": 1,
        "cpus-per-task": config.cpus,
        "gres": config.gres,
        "mem": config.mem,
        "signal": f"USR1@{config.signal_s}",
        "output": folder / FOLDER / "%A_%a.out",
        "open-mode": "append",
    }
    options = [f"--{name}={_quoted(value)}" for name, value in given.items() if value is not None]
    return "\n".join(
        [
            "#!/bin/bash",
            "# Each task trains one job of a sweep. Before its time limit it is sent SIGUSR1: it saves a checkpoint and queues again.",
            *(f"#SBATCH {option}" for option in [*options, "--requeue", *config.options]),
            "set -e",
            f"cd {shlex.quote(str(plan.working_folder))}",
            *config.setup,
            "set -uo pipefail # not before: `module load` and activation scripts may read variables that are not set",
            'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}" # srun does not inherit it from sbatch',
            f"exec srun {shlex.quote(sys.executable)} -m warprun job {shlex.quote(str(folder))}"
            ' "$SLURM_ARRAY_TASK_ID" "threads=$SRUN_CPUS_PER_TASK"' + (" trust=true" if trusted else ""),
            "",
        ]
    )


def ranges(numbers: Sequence[int]) -> str:
    """Return whole numbers as an array of sbatch: 0-3,7."""
    parts = []
    for _, run in itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(parts)


def _queued(folder: Path) -> str | None:
    """Return the array that was submitted last, if SLURM says that it has tasks left."""
    with suppress(FileNotFoundError):
        found = read_json(folder / SUBMITTED)
        number = str(found.get("job", "")) if isinstance(found, dict) else ""
        if number.isdigit():
            with suppress(OSError, subprocess.SubprocessError):  # a job that SLURM has forgotten is an error of squeue
                asked = subprocess.run(["squeue", "-h", "-j", number], capture_output=True, text=True, timeout=ANSWER_S, check=True)
                return number if asked.stdout.strip() else None
    return None


def _quoted(value: object) -> str:
    """Return a value of an `#SBATCH` line: sbatch reads quotes as a shell does."""
    text = str(value)
    return f'"{text}"' if " " in text else text
