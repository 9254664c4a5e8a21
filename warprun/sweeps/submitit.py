"""The launcher `submitit`: jobs on SLURM, or as processes of this machine, that submitit starts and queues again. No torch."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress

import submitit
from submitit.core.utils import FailedJobError

from warprun.errors import UserError, one_line
from warprun.sweeps import slurm
from warprun.sweeps.launch import BatchConfig
from warprun.sweeps.launcher import Launcher, interrupt, processes
from warprun.sweeps.plan import Job

MOST_TIMEOUTS = 10**6
"""Times that a job may reach its time limit."""
ASK_S = 2.0
"""Seconds between two questions to SLURM."""


class Task:
    """The command of a job, as submitit calls it on a node; before a time limit it is stopped and queued again."""

    def __init__(self, command: list[str], folder: str) -> None:
        self._command, self._folder = command, folder
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Train, and return the exit code."""
        self._process = subprocess.Popen(self._command, cwd=self._folder)
        try:
            while self._process.poll() is None:  # not `wait`, whose lock a signal handler would find closed
                time.sleep(0.1)
        finally:
            self._process.terminate()  # if the task is cancelled
        return self._process.returncode

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Let the job save a checkpoint and end, in a handler of the signal before a time limit; return what continues it."""
        if self._process:
            self._process.terminate()
            with suppress(ChildProcessError):
                os.waitpid(self._process.pid, 0)
        return submitit.helpers.DelayedSubmission(Task(self._command, self._folder))


class Submitit(Launcher):
    """Jobs of an executor of submitit, whose files lie in the folder `submitit` of the sweep. Ids are those of processes, or of SLURM."""

    config: BatchConfig

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        """Submit jobs, to SLURM as one array. Raises UserError."""
        config = self.config
        given = {"name": "warprun", "timeout_min": round(config.minutes), "cpus_per_task": config.cpus, "gpus_per_node": config.gpus}
        given |= {"slurm_partition": config.queue, "slurm_account": config.account, **config.options}
        try:
            executor = submitit.AutoExecutor(
                self.plan.folder.absolute() / config.name,
                config.executor,
                slurm_max_num_timeout=MOST_TIMEOUTS,
                local_max_num_timeout=MOST_TIMEOUTS,
            )
            executor.update_parameters(**{key: value for key, value in given.items() if value is not None})
            with redirect_stderr(io.StringIO()), executor.batch():  # sbatch's own words are in the error, too
                tasks = [executor.submit(Task(self.command(job, config.cpus), str(self.plan.working_folder))) for job in jobs]
        except (FailedJobError, AssertionError, NameError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"launcher.executor={config.executor} takes no job: {one_line(error)}") from None
        return [str(task.job_id) for task in tasks]

    def wait(self, within_s: float) -> None:
        """Wait; SLURM is asked less often."""
        time.sleep(within_s if self.config.is_local else ASK_S)

    def alive(self, ids: Sequence[str]) -> set[str]:
        """Return which have not ended: processes of this machine, or jobs in the queue of SLURM."""
        return processes(self.plan.folder, ids) if self.config.is_local else slurm.queued(ids)

    def cancel(self, ids: Sequence[str], number: int = signal.SIGTERM) -> None:
        """Cancel jobs; submitit ends processes of this machine a second after SIGINT."""
        interrupt(self.plan.folder, ids) if self.config.is_local else slurm.cancel(ids)
