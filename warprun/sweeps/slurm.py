"""The launcher `slurm`: one job array with a task for each job of a sweep. No torch."""

from __future__ import annotations

import itertools
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from warprun.errors import UserError, printable
from warprun.files import write_atomic
from warprun.sweeps.launch import SlurmConfig
from warprun.sweeps.launcher import Launcher
from warprun.sweeps.plan import Job, Plan

FOLDER = "slurm"
SCRIPT = "array.sbatch"
ANSWER_S = 60
"""Seconds in which sbatch and squeue must answer."""


class Slurm(Launcher):
    """One job array, whose number is the id of all its jobs."""

    def __init__(self, config: SlurmConfig, plan: Plan, trust: bool) -> None:
        """Raise UserError if jobs cannot be submitted from here."""
        if shutil.which("sbatch") is None:
            raise UserError("launcher=slurm: there is no sbatch here; call the command on a login node, or write launcher=local")
        self._config, self._plan, self._trust = config, plan, trust

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        """Write the script of the array and submit it. Raises UserError."""
        path = self._plan.folder / FOLDER / SCRIPT
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, script(self._plan, jobs, self._config, self._trust).encode())
        path.chmod(0o755)
        try:
            done = subprocess.run(
                ["sbatch", "--parsable", str(path)], cwd=self._plan.working_folder, capture_output=True, text=True, timeout=ANSWER_S
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise UserError(f"sbatch does not answer: {printable(error)}; {path} is the script") from None
        if done.returncode:
            raise UserError(f"sbatch refuses the job array: {printable(done.stderr.strip() or done.stdout.strip())}")
        return [done.stdout.strip().split(";")[0]] * len(jobs)

    def alive(self, ids: Sequence[str], within_s: float = 0.0) -> set[str]:
        """Return the array if SLURM says that it has tasks left."""
        time.sleep(within_s)
        return queued(ids)

    def cancel(self, ids: Sequence[str], number: int = signal.SIGTERM) -> None:
        """Cancel the array."""
        cancel(ids)

    def told(self, ids: Sequence[str], folder: Path) -> tuple[str, str]:
        """Return the number of the array, and `scancel`."""
        return f"job array {ids[0]}: {len(ids)} tasks", f"scancel {ids[0]}"


def queued(ids: Sequence[str]) -> set[str]:
    """Return which jobs, arrays (17) and tasks of arrays (17_3) SLURM has in its queue."""
    numbers = ",".join(sorted({id.partition("_")[0] for id in ids}))
    with suppress(OSError, subprocess.SubprocessError):  # a job that SLURM has forgotten is an error of squeue
        asked = ["squeue", "-h", "-r", "-o", "%i", "-j", numbers]
        found = subprocess.run(asked, capture_output=True, text=True, timeout=ANSWER_S, check=True).stdout.split("\n")
        known = {line.split()[0] for line in found if line.strip()}
        return set(ids) & (known | {task.partition("_")[0] for task in known})
    return set()


def cancel(ids: Sequence[str]) -> None:
    """Cancel jobs, arrays and tasks of arrays. Raises UserError."""
    try:
        subprocess.run(["scancel", *sorted(set(ids))], capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"scancel does not answer: {printable(error)}") from None


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
            ' "$SLURM_ARRAY_TASK_ID" "threads=$SRUN_CPUS_PER_TASK"' + (" trust=true" if trusted or not plan.seal else ""),
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


def _quoted(value: object) -> str:
    """Return a value of an `#SBATCH` line: sbatch reads quotes as a shell does."""
    text = str(value)
    return f'"{text}"' if " " in text else text
