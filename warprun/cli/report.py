"""`warprun report`: its arguments. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warprun.cli.settings import check_choice, read_settings
from warprun.errors import UserError


@dataclass
class _Settings:
    """The settings of `warprun report`."""

    by: str = ""
    """Settings to compare, with commas between them; empty: those that differ between the runs."""
    threshold: float = math.nan
    """The return to reach; NaN: env.solved_at."""
    returns: str = "auto"
    """eval, train or auto: evaluations if all runs have some."""
    unfinished: bool = False
    """Also use runs that have not reached their end."""
    log_x: bool = False
    out: str = "report"


def report_runs(arguments: Sequence[str]) -> None:
    """Report the runs that `arguments` name. Raises UserError."""
    settings = _Settings()
    places = read_settings("report", settings, arguments)
    if not places:
        raise UserError("report needs run folders or folders of runs, such as `warprun report outputs`")
    check_choice("returns", settings.returns, ("auto", "eval", "train"))
    given = any(argument.startswith("threshold=") for argument in arguments)
    if given and not math.isfinite(settings.threshold):
        raise UserError(f"threshold={settings.threshold} must be a finite number")
    by = tuple(dict.fromkeys(filter(None, settings.by.strip("[]").replace(" ", "").split(","))))
    if any(argument.startswith("by=") for argument in arguments) and not by:
        raise UserError("by= needs names of settings, such as by=agent,n_envs")
    from warprun.report.report import Asked, report

    report(
        Asked(
            places=tuple(map(Path, places)),
            by=by or None,
            threshold=settings.threshold if given else None,
            returns=None if settings.returns == "auto" else settings.returns,
            unfinished=settings.unfinished,
            log_x=settings.log_x,
            out=Path(settings.out),
        )
    )
