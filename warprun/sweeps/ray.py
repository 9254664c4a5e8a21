"""The launcher `ray`: each job a task of a Ray cluster, which goes on elsewhere if its node is lost. No torch."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import ray
from ray.exceptions import RayError, TaskCancelledError

from warprun.errors import UserError, one_line, printable
from warprun.processes import PARENT
from warprun.runs import signals
from warprun.sweeps.launch import RayConfig
from warprun.sweeps.launcher import Launcher, write_end
from warprun.sweeps.plan import Job, Plan

ANSWER_S = 10
"""Seconds in which a cluster must answer."""
LOOK_S = 0.1
"""Seconds between two looks of a task at its process."""


def train(command: list[str], folder: str, sweep: str) -> tuple[int, str]:
    """Run the command of a job on a node; return its exit code, and what it said last. The process ends with that of the task."""
    for place in (folder, sweep):
        if not Path(place).is_dir():
            return 2, f"the node {socket.gethostname()} does not see {place}, which must lie where all nodes see it"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ray cancels by it, and a cluster that was started by `&` ignores it
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, cwd=folder, env=os.environ | {PARENT: str(os.getpid())}, stdout=said, stderr=said)
        try:
            while child.poll() is None:
                time.sleep(LOOK_S)
        except KeyboardInterrupt:  # the task is cancelled
            child.terminate()
            child.wait()
            raise
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
        return child.returncode, lines[-1] if lines else ""


class Ray(Launcher):
    """Tasks of a Ray cluster; they end with the command."""

    config: RayConfig
    outlasts = False

    def __init__(self, config: RayConfig, plan: Plan, trust: bool) -> None:
        """Connect to the cluster. Raises UserError if there is none, or no node that can ever train a job."""
        super().__init__(config, plan, trust)
        self._tasks: dict[str, tuple[ray.ObjectRef, Job]] = {}
        handlers = {number: signal.getsignal(number) for number in signals.SIGNALS}
        try:
            if config.address.count(":") == 1:  # Ray itself asks for minutes whether there is a cluster
                host, port = config.address.split(":")
                socket.create_connection((host, int(port)), ANSWER_S).close()
            ray.init(config.address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(f"launcher.address={config.address}: {one_line(error)}; start a cluster with `ray start --head`") from None
        for number, handler in handlers.items():
            signal.signal(number, handler)
        self._wanted = {"CPU": float(config.cpus)} | ({"GPU": config.gpus} if config.gpus else {})
        self.size = self._places()
        if not self.size:
            ray.shutdown()
            raise UserError(f"launcher.cpus={config.cpus} launcher.gpus={config.gpus:g}: no node of the cluster has as many")
        self._train = ray.remote(train).options(num_cpus=config.cpus, num_gpus=config.gpus, max_retries=-1)

    def _places(self) -> int:
        """Return how many jobs all nodes that are there now have room for."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return sum(int(min(node.get(name, 0) // count for name, count in self._wanted.items())) for node in nodes)

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        """Make a task of each job."""
        ids = []
        for job in jobs:
            places = str(self.plan.working_folder), str(self.plan.folder.absolute())
            task = self._train.remote(self.command(job, self.config.cpus), *places)
            self._tasks[task.hex()] = task, job
            ids.append(task.hex())
        return ids

    def alive(self, ids: Sequence[str]) -> set[str]:
        """Return which tasks have not ended. A job that could not write its own end has failed."""
        self.size = max(1, self._places())
        done, left = ray.wait([self._tasks[id][0] for id in ids], num_returns=len(ids), timeout=0)
        for task in done:
            _, job = self._tasks.pop(task.hex())
            try:
                code, said = ray.get(task)
                write_end(job, printable(said) if said else f"its process ended with code {code}", exit_code=code)
            except TaskCancelledError:
                continue
            except RayError as error:
                write_end(job, one_line(error))
        return {task.hex() for task in left}

    def cancel(self, ids: Sequence[str], number: int = signal.SIGTERM) -> None:
        """Let the processes of tasks save a checkpoint and end; tasks that wait for a place never begin."""
        for id in ids:
            ray.cancel(self._tasks[id][0], recursive=False)

    def close(self) -> None:
        """Leave the cluster."""
        ray.shutdown()
