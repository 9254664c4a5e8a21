"""Many runs from one command (Hydra's multirun) and the table at their end."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from warprun.config.compose import VERSION_BASE, build, check_tuned, explain, register, rewrite
from warprun.config.registry import CONF
from warprun.config.schema import Config, check
from warprun.errors import UserError, one_line
from warprun.kernels.driver import prepare

INTERRUPTED = "interrupted"

if TYPE_CHECKING:
    from warprun.runtime.run import Result


@dataclass
class Row:
    """One run of a sweep: what was asked, and what came of it."""

    overrides: str
    result: Result | None = None
    error: str | None = None


@dataclass
class Sweep:
    """The runs of one command."""

    rows: list[Row] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    """The run_dir of every run that was checked."""

    @property
    def failed(self) -> int:
        """The number of runs that failed."""
        return sum(row.error is not None for row in self.rows)

    def check_job(self, composed: DictConfig) -> float:
        """Note what is wrong with the config of one run."""
        row = Row(_overrides())
        self.rows.append(row)
        try:
            config = _config(composed)
            check_tuned(HydraConfig.get().overrides.task)
            check(config)
            folder = None if config.run_dir is None else os.path.realpath(config.run_dir)
            if folder in self.folders:
                raise UserError(f"run_dir={config.run_dir}: two runs cannot share a folder; output_root and name can be the same for all")
            if folder is not None:
                self.folders.add(folder)
        except UserError as error:
            row.error = str(error)
        return 0.0

    def train_job(self, composed: DictConfig) -> float:
        """Train one run; one that fails does not stop the others."""
        row = Row(_overrides())
        self.rows.append(row)
        try:
            row.result = _train(_config(composed))
        except KeyboardInterrupt:
            row.error = INTERRUPTED
            raise
        except Exception as error:
            row.error = one_line(error)
            print(f"warprun: error: {row.overrides}: {row.error}", file=sys.stderr)
            return math.nan
        return objective(row.result)


def multirun(arguments: Sequence[str]) -> Sweep:
    """Check every run that `arguments` (with -m) ask for, then train them all."""
    checked = Sweep()
    _multirun(arguments, checked.check_job)
    for row in checked.rows:
        if row.error:
            raise UserError(f"{row.overrides}: {row.error}" if row.overrides else row.error)
    sweep = Sweep()
    try:
        _multirun(arguments, sweep.train_job)
    finally:
        # Also after Ctrl-C: what is finished is not lost.
        print_table(sweep.rows)
    return sweep


def hydra_main(arguments: Sequence[str], task: Callable[[DictConfig], Any]) -> None:
    """Hand the command line to Hydra; what it refuses is raised as UserError."""
    register(arguments)
    before = sys.argv
    # Hydra's parser takes the overrides only in one piece, and its --info would take one for its value.
    overrides = [argument for argument in arguments if "=" in argument and not argument.startswith("-")]
    flags = [argument for argument in arguments if argument not in overrides]
    with _hydra_raises():
        sys.argv = [before[0], *map(rewrite, overrides), *flags]
        try:
            hydra.main(config_path=f"pkg://{CONF}", config_name="config", **VERSION_BASE)(task)()
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise UserError(explain(error)) from error
        finally:
            sys.argv = before


def objective(result: Result) -> float:
    """Return what a sweep compares: the evaluation return, or the training return of a run without evaluation."""
    for value in (result.eval_return, result.train_return):
        if value is not None:
            return value
    return math.nan


def print_table(rows: Sequence[Row]) -> None:
    """Print one line for each run."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a file has no width; do not fold its lines
    table = Table(title="1 run" if len(rows) == 1 else f"{len(rows)} runs", title_justify="left")
    for name in ("overrides", "return", "env steps/s", "wall s", "folder"):
        table.add_column(name, justify="left" if name in ("overrides", "folder") else "right", overflow="fold")
    for row in rows:
        result = row.result
        if result is None:
            state = "interrupted" if row.error == INTERRUPTED else "[red]failed[/red]"
            table.add_row(row.overrides, state, "", "", "" if row.error == INTERRUPTED else row.error or "")
        else:
            speed = result.env_steps / result.wall_s if result.wall_s else math.nan
            table.add_row(row.overrides, _return(result), f"{speed:,.0f}", f"{result.wall_s:.1f}", os.path.relpath(result.folder))
    console.print(table)


def _return(result: Result) -> str:
    """Return what is compared, with its standard error if there is one."""
    return f"{objective(result):.1f}" + ("" if result.eval_stderr is None else f" ± {result.eval_stderr:.1f}")


def _multirun(arguments: Sequence[str], task: Callable[[DictConfig], Any]) -> None:
    # Hydra's sweeper makes a folder, and a multirun.yaml in it, before it has looked at a single value.
    with tempfile.TemporaryDirectory() as scratch:
        hydra_main([*arguments, f"hydra.sweep.dir={scratch}"], task)


def _train(config: Config) -> Result:
    prepare(config.device)
    from warprun.runtime.run import train

    return train(config)


def _config(composed: DictConfig) -> Config:
    made = HydraConfig.get()
    return build(composed, made.runtime.choices, [override.lstrip("+") for override in made.overrides.task])


def _overrides() -> str:
    return " ".join(override.lstrip("+") for override in HydraConfig.get().overrides.task)


@contextmanager
def _hydra_raises() -> Iterator[None]:
    # With this set Hydra raises its errors, where it would print them and exit.
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before
