"""Many runs from one command (Hydra's multirun), and the table of their results."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from warprun.cli.next_steps import print_next_steps
from warprun.config.compose import PRIMARY, VERSION_BASE, build, check_tuned, explain, register, rewrite
from warprun.config.registry import CONF
from warprun.config.schema import Config, check
from warprun.errors import UserError, one_line
from warprun.kernels.driver import prepare

INTERRUPTED = "interrupted"

if TYPE_CHECKING:
    from warprun.runtime.run import Result


@dataclass
class Row:
    """One run of a sweep: its overrides, and its result or error."""

    overrides: str
    result: Result | None = None
    error: str | None = None


@dataclass
class Sweep:
    """The runs of one command."""

    rows: list[Row] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    """`run_dir` of every run that was checked."""

    @property
    def failed(self) -> int:
        """The number of runs that failed."""
        return sum(row.error is not None for row in self.rows)

    def check_job(self, composed: DictConfig) -> float:
        """Check the config of one run and store the first error."""
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
        """Train one run. A failure does not stop the other runs."""
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
    """Check every run that `arguments` (with -m) describe, then train them all."""
    checked = Sweep()
    _multirun(arguments, checked.check_job)
    for row in checked.rows:
        if row.error:
            raise UserError(f"{row.overrides}: {row.error}" if row.overrides else row.error)
    sweep = Sweep()
    try:
        _multirun(arguments, sweep.train_job)
    finally:
        # Also after Ctrl-C, for the runs that have finished.
        print_table(sweep.rows)
        done = [row.result for row in sweep.rows if row.result is not None]
        if done:
            best = max(done, key=_comparable)
            print_next_steps([result.folder for result in done], best.folder)
    return sweep


def hydra_main(arguments: Sequence[str], task: Callable[[DictConfig], float | None]) -> None:
    """Pass the command line to Hydra. Its errors are raised as UserError."""
    register(arguments)
    before = sys.argv
    # Hydra's parser requires all overrides next to each other, and --info would take one as its value.
    overrides = [argument for argument in arguments if "=" in argument and not argument.startswith("-")]
    flags = [argument for argument in arguments if argument not in overrides]
    with _hydra_raises():
        sys.argv = [before[0], *map(rewrite, overrides), *flags]
        try:
            hydra.main(config_path=f"pkg://{CONF}", config_name=PRIMARY, **VERSION_BASE)(task)()
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise UserError(explain(error)) from error
        finally:
            sys.argv = before


def objective(result: Result) -> float:
    """Return the number by which a sweep compares runs: the return of the last evaluation, else that of training, else NaN."""
    for value in (result.eval_return, result.train_return):
        if value is not None:
            return value
    return math.nan


def _comparable(result: Result) -> float:
    value = objective(result)
    return -math.inf if math.isnan(value) else value


def print_table(rows: Sequence[Row]) -> None:
    """Print a table with a row per run."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a file has no width, so its lines are not folded
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
    """Return the compared value as text, with its standard error if it has one."""
    return f"{objective(result):.1f}" + ("" if result.eval_stderr is None else f" ± {result.eval_stderr:.1f}")


def _multirun(arguments: Sequence[str], task: Callable[[DictConfig], float | None]) -> None:
    # Hydra's sweeper makes a folder with a multirun.yaml before it checks any value.
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
    # With this variable Hydra raises its errors. Without it, Hydra prints them and exits.
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before
