"""The launcher `slurm`: one job array with a task for each job of a sweep. No torch."""

from __future__ import annotations

import itertools
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

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
    """One job array, whose tasks have the numbers of the jobs; ARRAY_TASK is the id of a job."""

    config: SlurmConfig

    def __init__(self, config: SlurmConfig, plan: Plan, trust: bool) -> None:
        """Raise UserError if jobs cannot be submitted from here."""
        if shutil.which("sbatch") is None:
            raise UserError("launcher=slurm: there is no sbatch here; call the command on a login node, or write launcher=local")
        super().__init__(config, plan, trust)

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        """Write the script of the array and submit it. Raises UserError."""
        path = self.plan.folder / FOLDER / SCRIPT
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, script(self.plan, jobs, self.config, self.trust).encode())
        path.chmod(0o755)
        try:
            words = ["sbatch", "--parsable", str(path)]
            done = subprocess.run(words, cwd=self.plan.working_folder, capture_output=True, text=True, timeout=ANSWER_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise UserError(f"sbatch does not answer: {printable(error)}; {path} is the script") from None
        if done.returncode:
            raise UserError(f"sbatch refuses the job array: {printable(done.stderr.strip() or done.stdout.strip())}")
        return [f"{done.stdout.strip().split(';')[0]}_{job.number}" for job in jobs]

    def alive(self, ids: Sequence[str]) -> set[str]:
        return queued(ids)

    def cancel(self, ids: Sequence[str], number: int = signal.SIGTERM) -> None:
        cancel(ids)


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
    """Cancel jobs, arrays and tasks of arrays, those of an array at once. Raises UserError."""
    tasks: dict[str, list[int]] = {}
    for array, _, task in (id.partition("_") for id in ids):
        tasks.setdefault(array, []).extend([int(task)] if task else [])
    named = [f"{array}_[{ranges(numbers)}]" if numbers else array for array, numbers in tasks.items()]
    try:
        subprocess.run(["scancel", *named], capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"scancel does not answer: {printable(error)}") from None


def script(plan: Plan, jobs: Sequence[Job], config: SlurmConfig, trusted: bool = False) -> str:
    """Return the script of an array over `jobs`, whose tasks have the numbers of the jobs."""
    folder = plan.folder.absolute()
    given = {
        "job-name": f'"warprun-{folder.name}"',  # sbatch reads quotes as a shell does
        "array": ranges([job.number for job in jobs]) + (f"%{config.array_limit}" if config.array_limit else ""),
        **{name: getattr(config, name) for name in ("partition", "account", "time", "gres", "mem")},
        "nodes": 1,
        "ntasks": 1,
        "cpus-per-task": config.cpus,
        "signal": f"USR1@{config.signal_s}",
        "output": f'"{folder / FOLDER / "%A_%a.out"}"',
        "open-mode": "append",
    }
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
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
