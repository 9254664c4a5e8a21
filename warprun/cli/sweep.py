"""Many runs from one command, and the table of their results."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.table import Table
from rich.text import Text

from warprun.cli.next_steps import print_next_steps
from warprun.config.compose import PRIMARY, VERSION_BASE, compose, explain, register
from warprun.config.overrides import runs
from warprun.config.registry import CONF
from warprun.config.schema import Config
from warprun.errors import UserError, one_line, printable
from warprun.kernels.driver import prepare
from warprun.runtime.records.console import table_console

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

    @property
    def failed(self) -> int:
        """The number of runs that failed."""
        return sum(row.error is not None for row in self.rows)

    def train(self, overrides: str, config: Config) -> None:
        """Train one run. A failure does not stop the other runs."""
        row = Row(overrides)
        self.rows.append(row)
        try:
            row.result = _train(config)
        except KeyboardInterrupt:
            row.error = INTERRUPTED
            raise
        except Exception as error:
            row.error = one_line(error)
            print(f"warprun: error: {printable(f'{row.overrides}: {row.error}')}", file=sys.stderr)


def multirun(overrides: Sequence[str]) -> Sweep:
    """Check every run that `overrides` describe, then train them all."""
    checked = _checked(overrides)
    sweep = Sweep()
    try:
        for name, config in checked:
            sweep.train(name, config)
    finally:
        # Also after Ctrl-C, for the runs that have finished. As for the records of a run, a closed pipe or a full disk is not a failure.
        with suppress(OSError):
            print_table(sweep.rows)
        done = [row.result for row in sweep.rows if row.result is not None]
        if done:
            best = max(done, key=_comparable)
            print_next_steps([result.folder for result in done], best.folder)
    return sweep


def _checked(overrides: Sequence[str]) -> list[tuple[str, Config]]:
    """Return the overrides and the config of every run. Raises UserError for the first run that cannot work."""
    checked: list[tuple[str, Config]] = []
    folders: set[str] = set()
    for run in runs(overrides):
        name = " ".join(run)
        try:
            config = compose(run)
        except UserError as error:
            raise UserError(f"{name}: {error}" if name else str(error)) from error
        if config.run_dir is not None:
            folder = os.path.realpath(config.run_dir)
            if folder in folders:
                raise UserError(f"run_dir={config.run_dir}: two runs cannot share a folder; output_root and name can be the same for all")
            folders.add(folder)
        checked.append((name, config))
    return checked


def hydra_main(overrides: Sequence[str], flags: Sequence[str]) -> None:
    """Let Hydra print what `flags`, its own options, ask for. Its errors are raised as UserError."""
    before = sys.argv
    with _hydra_raises():
        # Hydra's parser requires all overrides next to each other, and --info would take one as its value.
        sys.argv = [before[0], *overrides, *flags]
        try:
            register(overrides)
            hydra.main(config_path=f"pkg://{CONF}", config_name=PRIMARY, **VERSION_BASE)(lambda _: None)()
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
    console = table_console(200)
    table = Table(title="1 run" if len(rows) == 1 else f"{len(rows)} runs", title_justify="left")
    for name in ("overrides", "return", "env steps/s", "wall s", "folder"):
        table.add_column(name, justify="left" if name in ("overrides", "folder") else "right", overflow="fold")
    for row in rows:
        result = row.result
        if result is None:
            state = Text("interrupted") if row.error == INTERRUPTED else Text("failed", style="red")
            table.add_row(row.overrides, state, "", "", "" if row.error == INTERRUPTED else row.error or "")
        else:
            speed = result.env_steps / result.wall_s if result.wall_s else math.nan
            table.add_row(row.overrides, _return(result), f"{speed:,.0f}", f"{result.wall_s:.1f}", os.path.relpath(result.folder))
    console.print(table)


def _return(result: Result) -> str:
    """Return the compared value as text, with its standard error if it has one."""
    return f"{objective(result):.1f}" + ("" if result.eval_stderr is None else f" ± {result.eval_stderr:.1f}")


def _train(config: Config) -> Result:
    prepare(config.device)
    from warprun.runtime.run import train

    return train(config)


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
