"""The launcher `submitit`: jobs on SLURM, or as processes of this machine, that submitit starts and queues again. No torch."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

import submitit
from submitit.core.utils import FailedJobError

from warprun.errors import UserError, one_line
from warprun.sweeps import slurm
from warprun.sweeps.launch import SubmititConfig
from warprun.sweeps.launcher import Launcher, command, processes
from warprun.sweeps.plan import Job, Plan

LOCAL = "local"
"""The executor whose ids are numbers of processes."""
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
    """Jobs of an executor of submitit, whose files lie in the folder `submitit` of the sweep."""

    def __init__(self, config: SubmititConfig, plan: Plan, trust: bool) -> None:
        self._settings, self._plan, self._trust = config, plan, trust
        self._jobs: dict[str, submitit.Job[int]] = {}

    @property
    def size(self) -> int | None:
        """The number of jobs at a time; None: all at once."""
        return self._settings.workers or (1 if self._settings.executor == LOCAL else None)

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        """Submit jobs, to SLURM as one array. Raises UserError."""
        config = self._settings
        given = {"name": "warprun", "timeout_min": round(config.minutes), "cpus_per_task": config.cpus, "gpus_per_node": config.gpus}
        try:
            executor = submitit.AutoExecutor(
                self._plan.folder.absolute() / config.name,
                config.executor,
                slurm_max_num_timeout=MOST_TIMEOUTS,
                local_max_num_timeout=MOST_TIMEOUTS,
            )
            executor.update_parameters(**{**given, **config.options})
            with executor.batch():
                started = [executor.submit(self._task(job)) for job in jobs]
        except (FailedJobError, AssertionError, NameError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"launcher.executor={config.executor} takes no job: {one_line(error)}") from None
        ids = [str(one.job_id) for one in started]
        self._jobs |= zip(ids, started, strict=True)
        return ids

    def _task(self, job: Job) -> Task:
        return Task(command(self._plan, job.number, self._settings.cpus, self._trust), str(self._plan.working_folder))

    def alive(self, ids: Sequence[str], within_s: float = 0.0) -> set[str]:
        """Return which have not ended: processes of this machine, or jobs in the queue of SLURM."""
        if self._settings.executor != LOCAL:
            time.sleep(max(within_s, ASK_S) if within_s else 0.0)
            return slurm.queued(ids)
        time.sleep(within_s)
        own = {id for id in ids if id in self._jobs and not self._jobs[id].done()}
        return own | processes(self._plan.folder, [id for id in ids if id not in self._jobs])

    def cancel(self, ids: Sequence[str], number: int = signal.SIGTERM) -> None:
        """Cancel jobs; processes of this machine end a second after SIGINT."""
        if self._settings.executor != LOCAL:
            return slurm.cancel(ids)
        for id in processes(self._plan.folder, ids):
            with suppress(ProcessLookupError):
                os.kill(int(id), signal.SIGINT)
