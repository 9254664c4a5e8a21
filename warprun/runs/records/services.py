"""Sinks for Weights & Biases and MLflow: they log the rows of a run, its config and its outcome.

Each library is imported with the first row, so a run that does not begin leaves nothing behind. The library decides
where records go (WANDB_MODE, WANDB_ENTITY, MLFLOW_TRACKING_URI and so on). A file in the run folder keeps the id of the
record for a resumed run. After a failure to begin, a service gets nothing more, because each attempt may wait for a
network.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from warprun.errors import UserError, one_line
from warprun.files import read_limited, write_atomic
from warprun.runs.records.sink import Row, Sink, flatten
from warprun.runs.rundir import ENDED

if TYPE_CHECKING:
    import wandb
    from mlflow import MlflowClient

T = TypeVar("T")

MOST_PARAMS = 100
"""Settings in one message to MLflow."""
MOST_CHARACTERS = 500
"""Most characters of the value of a setting; MLflow before 2.8 takes no more."""
ID = re.compile(r"[\w-]{1,64}", re.ASCII)


class WeightsAndBiases(Sink):
    """Log to a run of Weights & Biases, over `env_steps`."""

    name = "wandb"

    def __init__(self, folder: Path, config: Mapping[str, object], project: str) -> None:
        self._folder, self._config, self._project = folder, config, project
        self._run = Once(self._begin)

    def _begin(self) -> wandb.Run:
        import wandb

        former = read_id(self._folder, self.name)
        # The output of the run stays its own, and nothing is asked on the terminal.
        settings = wandb.Settings(console="off", silent=True, init_timeout=60)
        run = wandb.init(
            project=self._project,
            name=self._folder.name,
            id=former,
            resume="allow" if former else None,
            config=flatten(self._config),
            settings=settings,
        )
        write_id(self._folder, self.name, run.id)
        run.define_metric("env_steps")
        run.define_metric("*", step_metric="env_steps")
        return run

    def log(self, row: Row) -> None:
        """Log the values of one row."""
        with failures():
            run = self._run.get()
            if run is not None:
                run.log({"env_steps": row.env_steps, "wall_s": row.wall_s, **finite(row.values)})

    def finish(self, summary: Mapping[str, float | str], status: str) -> None:
        """Add the outcome to the summary of the run."""
        with failures():
            if self._run.begun is not None:
                self._run.begun.summary.update({"status": status, **{f"summary/{key}": value for key, value in summary.items()}})
                self._run.begun.summary.update({"exit_code": int(status not in ENDED)})

    def close(self) -> None:
        """End the run, after the rest of its records is sent."""
        run, self._run = self._run.begun, Once(None)
        with failures():
            if run is not None:
                run.finish()


class MLflow(Sink):
    """Log to a run of MLflow, over `env_steps`."""

    name = "mlflow"

    def __init__(self, folder: Path, config: Mapping[str, object], project: str) -> None:
        self._folder, self._config, self._project = folder, config, project
        self._run = Once(self._begin)
        self._ended: str | None = None

    def _begin(self) -> tuple[MlflowClient, str]:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = MlflowClient()
        former = read_id(self._folder, self.name)
        if former:
            client.set_terminated(former, "RUNNING")
            return client, former
        experiment = client.get_experiment_by_name(self._project)
        place = experiment.experiment_id if experiment else client.create_experiment(self._project)
        found = client.create_run(place, run_name=self._folder.name).info.run_id
        write_id(self._folder, self.name, found)
        settings = [Param(key, str(value)[:MOST_CHARACTERS]) for key, value in flatten(self._config).items()]
        for first in range(0, len(settings), MOST_PARAMS):
            client.log_batch(found, params=settings[first : first + MOST_PARAMS])
        return client, found

    def log(self, row: Row) -> None:
        """Log the values of one row."""
        with failures():
            begun = self._run.get()
            if begun is not None:
                from mlflow.entities import Metric

                now = int(1000 * time.time())
                values = {"wall_s": row.wall_s, **finite(row.values)}
                begun[0].log_batch(begun[1], metrics=[Metric(tag, value, now, row.env_steps) for tag, value in values.items()])

    def finish(self, summary: Mapping[str, float | str], status: str) -> None:
        """Add the outcome as tags."""
        self._ended = status
        with failures():
            if self._run.begun is not None:
                client, run = self._run.begun
                for key, value in {"status": status, **{f"summary/{key}": value for key, value in summary.items()}}.items():
                    client.set_tag(run, key, str(value))

    def close(self) -> None:
        """End the run."""
        begun, self._run = self._run.begun, Once(None)
        states = {"finished": "FINISHED", "solved": "FINISHED", "failed": "FAILED"}
        with failures():
            if begun is not None:
                begun[0].set_terminated(begun[1], states.get(self._ended or "", "KILLED"))


SERVICES: dict[str, Callable[[Path, Mapping[str, object], str], Sink]] = {"wandb": WeightsAndBiases, "mlflow": MLflow}
"""Names in `log.services`; `config.checks.SERVICES` has the same."""


def services(folder: Path, config: Mapping[str, object]) -> list[Sink]:
    """Return the sinks that `log.services` of a config names."""
    log = config.get("log")
    if not isinstance(log, Mapping):
        return []
    return [SERVICES[name](folder, config, str(log.get("project"))) for name in log.get("services", [])]


class Once(Generic[T]):
    """A value that `begin` returns when it is first needed. If `begin` fails, it is not called again."""

    def __init__(self, begin: Callable[[], T] | None) -> None:
        self._begin = begin
        self.begun: T | None = None
        """The value; None before the first call of `get`, and after a failure."""

    def get(self) -> T | None:
        """Return the value, None after a failure. Raises whatever `begin` raises."""
        begin, self._begin = self._begin, None
        if begin is not None:
            self.begun = begin()
        return self.begun


@contextmanager
def failures() -> Iterator[None]:
    """Turn every exception of a library into the OSError of a sink that cannot be written to: training goes on."""
    try:
        yield
    except Exception as error:
        raise OSError(one_line(error)) from error


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values that services can store."""
    return {tag: value for tag, value in values.items() if math.isfinite(value)}


def read_id(folder: Path, service: str) -> str | None:
    """Return the id that an earlier process of the run kept; None if there is none that can be one."""
    try:
        found = read_limited(folder / f"{service}.id", 100).decode().strip()
    except (OSError, UserError, UnicodeDecodeError):
        return None
    return found if ID.fullmatch(found) else None


def write_id(folder: Path, service: str, found: str) -> None:
    """Keep the id of the run's record. Raises OSError."""
    write_atomic(folder / f"{service}.id", found.encode() + b"\n")
