"""`warprun tune`: a search for good settings with Optuna. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from warprun.cli.job import train_job
from warprun.cli.outcome import DONE, FAILED
from warprun.cli.sweep import checked_runs, held, refuse, sweep_folder
from warprun.errors import UserError, one_line, printable, program, typed
from warprun.runs.records.console import table_console
from warprun.sweeps import plan
from warprun.sweeps.launch import LocalConfig, taken_launch
from warprun.sweeps.pool import Pool
from warprun.sweeps.table import Board

SHORT = ("trials", "pruner")
"""Settings that need no `tune.` before them."""


def tune(arguments: Sequence[str]) -> int:
    """Search the settings that have several values, and print the best ones; return FAILED if no trial has finished. Raises UserError."""
    overrides = [f"tune.{argument}" if argument.partition("=")[0] in SHORT else argument for argument in arguments]
    launch, given = taken_launch(overrides)
    refuse(given)
    if not isinstance(launch.launcher, LocalConfig):
        raise UserError(f"launcher={launch.launcher.name}: tune starts its trials on this machine; start it within a job of the cluster")
    try:
        from warprun.sweeps import study as studies
        from warprun.sweeps.space import read_space
    except ImportError as error:
        raise UserError(f"tune needs Optuna ({one_line(error)}): pip install 'warprun[tune]'") from None
    space = read_space(given)
    configs = checked_runs(space.corners())
    found = plan.studied(sweep_folder(launch, configs[0]), space.text, launch.trust)
    with held(found, configs[0]):
        study = studies.Study(found, space, launch.tune, configs[0].eval.group)
        board = Board.of(found)
        train = partial(train_job, trusted=launch.trust or not found.seal)
        pool = Pool(found.folder, launch.launcher.workers, {config.device for config in configs}, train)
        print(f"{printable(found.folder, 1000)}: {launch.tune.trials} trials, {pool.describe()}", flush=True)
        try:
            studies.run(study, board, pool)
        finally:
            board.refresh()
            with suppress(OSError):
                table_console(200).print(board.table())
                following = _next(study.best, studies.BEST)
                print("\n".join([*studies.closing(study, found.folder), *following]), flush=True)
    return DONE if study.best else FAILED


def _next(best: plan.Job | None, settings: str) -> list[str]:
    if best is None:
        return []
    file = typed(best.run.parent / settings)
    return [
        "next:",
        f"  {program()} eval {typed(best.run)}",
        f"  mkdir -p conf/experiment && cp {file} conf/experiment/best.yaml && {program()} -m experiment=best 'seed=range(0,8)'",
    ]
