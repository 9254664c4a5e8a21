"""The launcher `psij`: each job by PSI/J, which knows PBS, LSF, Flux, Cobalt, SLURM and processes of this machine. No torch."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from datetime import timedelta

import psij

from warprun.errors import UserError, check_one_of, one_line
from warprun.sweeps.launch import BatchConfig
from warprun.sweeps.launcher import Launcher, interrupt, processes
from warprun.sweeps.plan import Job, Plan


class Psij(Launcher):
    """Jobs of an executor of PSI/J, whose files lie in the folder `psij` of the sweep. Their ids are those of the executor."""

    config: BatchConfig

    def __init__(self, config: BatchConfig, plan: Plan, trust: bool) -> None:
        """Raise UserError if there is no such executor here."""
        super().__init__(config, plan, trust)
        check_one_of("launcher.executor", config.executor, sorted(psij.JobExecutor.get_executor_names()))
        self._folder = plan.folder.absolute() / config.name
        of_executor = psij.JobExecutorConfig(self._folder / "launcher.log", self._folder)
        try:
            self._executor = psij.JobExecutor.get_instance(config.executor, config=of_executor)
        except (ImportError, ValueError) as error:
            raise UserError(f"launcher.executor={config.executor}: {one_line(error)}") from None
        self._jobs: dict[str, psij.Job] = {}

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
                    raise UserError(f"launcher.executor={self.config.executor} takes no job: {one_line(error)}") from None
                break
            self._jobs[str(one.native_id)] = one
            ids.append(str(one.native_id))
        return ids

    def _spec(self, job: Job) -> psij.JobSpec:
        config = self.config
        program, *arguments = self.command(job, config.cpus)
        return psij.JobSpec(
            program,
            arguments,
            directory=self.plan.working_folder,
            name=f"warprun-{job.number}",
            stdout_path=self._folder / f"{job.number}.out",
            stderr_path=self._folder / f"{job.number}.err",
            resources=psij.ResourceSpecV1(process_count=1, cpu_cores_per_process=config.cpus, gpu_cores_per_process=config.gpus or None),
            attributes=psij.JobAttributes(
                timedelta(minutes=config.minutes), config.queue, config.account, custom_attributes={**config.options}
            ),
        )

    def alive(self, ids: Sequence[str]) -> set[str]:
        """Return which have not ended: processes, by the state that PSI/J has of them, or jobs of other commands by the queue."""
        if self.config.is_local:
            return processes(self.plan.folder, ids)
        own = {id: not self._jobs[id].status.final for id in ids if id in self._jobs}
        try:
            queued = set(self._executor.list()) if len(own) < len(ids) else set()
        except (psij.SubmitException, OSError) as error:
            raise UserError(f"launcher.executor={self.config.executor} does not tell its jobs: {one_line(error)}") from None
        return {id for id in ids if own.get(id, id in queued)}

    def cancel(self, ids: Sequence[str], number: int = signal.SIGTERM) -> None:
        """Cancel jobs as the executor does; processes of this machine save a checkpoint."""
        if self.config.is_local:
            return interrupt(self.plan.folder, ids)
        for id in self.alive(ids):
            if id not in self._jobs:
                self._jobs[id] = psij.Job()
                self._executor.attach(self._jobs[id], id)
            self._jobs[id].cancel()
