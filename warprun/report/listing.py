"""The runs below a folder as a table, for programs and notebooks. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from warprun.errors import UserError, needs, printable
from warprun.report.runs import run_folders
from warprun.run_folder import CONFIG
from warprun.runs import rundir
from warprun.runs.progress import facts

if TYPE_CHECKING:
    from pandas import DataFrame

SETTINGS = ("env.name", "agent.name", "n_envs", "seed")
FACTS = ("state", "env_steps", "wall_s", "train", "eval", "eval_stderr")
"""How far a run is; `train` and `eval` are its last returns, of several groups those of `eval.group`, `eval_stderr` is a standard error."""
COLUMNS = ("folder", *SETTINGS, *FACTS)


class Runs(list[Mapping[str, object]]):
    """Rows of a table, one for each run, by COLUMNS. A notebook shows it as a table, and `print` as text."""

    def frame(self) -> DataFrame:
        """Return the table as a data frame of pandas. Raises UserError without pandas."""
        with needs("pandas", "notebook"):
            from pandas import DataFrame

        return DataFrame(list(self), columns=list(COLUMNS))

    def __str__(self) -> str:
        columns = [[name, *(_text(row[name]) for row in self)] for name in COLUMNS]
        padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
        return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))

    def _repr_html_(self) -> str:
        rows = ["".join(f"<td>{escape(_text(row[name]))}</td>" for name in COLUMNS) for row in self]
        lines = ["".join(f"<th>{name}</th>" for name in COLUMNS), *rows]
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def results(place: str | os.PathLike[str] = "outputs") -> Runs:
    """Return the runs in and below a folder, oldest first, those that train or failed included; None: not known.

    Raises UserError if the folder does not exist.
    """
    root = Path(place)
    if not root.is_dir():
        raise UserError(f"{printable(root)} is no folder")
    found = [(facts(folder), folder) for folder in run_folders(root) if os.path.isfile(folder / CONFIG)]
    rows = []
    for status, folder in sorted(found, key=lambda run: (str(run[0].get("started")), run[1])):
        try:
            settings = rundir.read_settings(folder)
        except UserError:
            settings = {}  # a damaged config is a row without settings
        known = {name: settings.get(name) for name in SETTINGS} | {name: status.get(name) for name in FACTS}
        rows.append({"folder": str(folder), **known})
    return Runs(rows)


def _text(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else printable(value)
