"""Event files of TensorBoard for runs that wrote none, such as those of large sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from warprun.report.runs import Run
from warprun.runs import rundir
from warprun.runs.records.jsonl import JsonLines, read_rows
from warprun.runs.records.sink import PREFIX, Row
from warprun.runs.records.tensorboard import TensorBoard


def write_missing(runs: Sequence[Run]) -> int:
    """Write the event file of every run that has ended and has none, from its metrics.jsonl; return how many.

    Raises OSError, and UserError for records that cannot be read.
    """
    missing = [run for run in runs if run.state != "running" and not any(run.folder.glob(f"{PREFIX}*"))]
    for run in missing:
        began_s = 0.0
        with suppress(ValueError):
            began_s = datetime.fromisoformat(str(rundir.read_status(run.folder).get("started"))).timestamp()
        sink = TensorBoard(run.folder, rundir.read_config(run.folder), began_s=began_s)
        try:
            for row in read_rows(run.folder / JsonLines.name):
                values = {tag: value for tag, value in row.items() if tag not in ("env_steps", "wall_s")}
                sink.log(Row(int(row["env_steps"]), row["wall_s"], values))
            sink.finish({}, run.state)
        finally:
            sink.close()
    return len(missing)
