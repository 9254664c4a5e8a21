"""The launcher `psij`: each job by PSI/J, which knows PBS, LSF, Flux, Cobalt, SLURM and processes of this machine. No torch."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from datetime import timedelta

import psij

from warprun.errors import UserError, check_one_of, one_line
from warprun.sweeps.launch import PsijConfig
from warprun.sweeps.launcher import Launcher, command, processes
from warprun.sweeps.plan import Job, Plan

LOCAL = "local"
"""The executor whose ids are numbers of processes."""
CANCELLED_S = 5.0
"""Longest wait for the end of jobs that were cancelled."""


class Psij(Launcher):
    """Jobs of an executor of PSI/J, whose files lie in the folder `psij` of the sweep."""

    def __init__(self, config: PsijConfig, plan: Plan, trust: bool) -> None:
        """Raise UserError if there is no such executor here."""
        check_one_of("launcher.executor", config.executor, sorted(psij.JobExecutor.get_executor_names()))
        self._settings, self._plan, self._trust = config, plan, trust
        self._folder = plan.folder.absolute() / config.name
        of_executor = psij.JobExecutorConfig(self._folder / "launcher.log", self._folder)
        try:
            self._executor = psij.JobExecutor.get_instance(config.executor, config=of_executor)
        except (ImportError, ValueError) as error:
            raise UserError(f"launcher.executor={config.executor}: {one_line(error)}") from None
        self._jobs: dict[str, psij.Job] = {}

    @property
    def size(self) -> int | None:
        """The number of jobs at a time; None: all at once."""
        return self._settings.workers or (1 if self._settings.executor == LOCAL else None)

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        """Submit jobs one by one, until the queue takes no more. Raises UserError if it takes none."""
        self._folder.mkdir(exist_ok=True)
        ids: list[str] = []
        for job in jobs:
            one = psij.Job(self._spec(job))
            try:
                self._executor.submit(one)
            except (psij.SubmitException, psij.InvalidJobException, OSError) as error:
                if not ids:
                    raise UserError(f"launcher.executor={self._settings.executor} takes no job: {one_line(error)}") from None
                break
            self._jobs[str(one.native_id)] = one
            ids.append(str(one.native_id))
        return ids

    def _spec(self, job: Job) -> psij.JobSpec:
        config = self._settings
        program, *arguments = command(self._plan, job.number, config.cpus, self._trust)
        return psij.JobSpec(
            program,
            arguments,
            directory=self._plan.working_folder,
            name=f"warprun-{job.number}",
            stdout_path=self._folder / f"{job.number}.out",
            stderr_path=self._folder / f"{job.number}.err",
            resources=psij.ResourceSpecV1(
                node_count=1, process_count=1, cpu_cores_per_process=config.cpus, gpu_cores_per_process=config.gpus or None
            ),
            attributes=psij.JobAttributes(
                timedelta(minutes=config.minutes), config.queue, config.account, custom_attributes=dict(config.options)
            ),
        )

    def alive(self, ids: Sequence[str], within_s: float = 0.0) -> set[str]:
        """Return which have not ended: by the state that PSI/J has of them, or of jobs of other commands by the queue."""
        time.sleep(within_s)
        own = {id for id in ids if id in self._jobs and not self._jobs[id].status.final}
        return own | self._queued([id for id in ids if id not in self._jobs])

    def _queued(self, ids: Sequence[str]) -> set[str]:
        if self._settings.executor == LOCAL or not ids:
            return processes(self._plan.folder, ids)
        try:
            return set(ids) & set(self._executor.list())
        except (psij.SubmitException, OSError) as error:
            raise UserError(f"launcher.executor={self._settings.executor} does not tell its jobs: {one_line(error)}") from None

    def cancel(self, ids: Sequence[str], number: int = signal.SIGTERM) -> None:
        """Cancel jobs as the executor does; `local` kills their processes."""
        for id in self._queued(ids):
            one = self._jobs.get(id)
            if one is None:
                one = psij.Job()
                self._executor.attach(one, id)
            one.cancel()
        end_s = time.monotonic() + CANCELLED_S
        while self._queued(ids) and time.monotonic() < end_s:
            time.sleep(0.1)
