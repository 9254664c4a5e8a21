"""What the files of a job say of it. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from warprun.errors import UserError
from warprun.runs import rundir
from warprun.runs.records.jsonl import last_row, read_rows
from warprun.sweeps.plan import Job

WAITING = "waiting"
DONE = ("finished", "solved")


@dataclass(frozen=True)
class State:
    """One job now."""

    state: str
    """waiting, running, finished, solved, failed, interrupted or killed."""
    error: str = ""
    """Why it failed, or was interrupted, in one line."""
    env_steps: int | None = None
    wall_s: float | None = None
    """Of all processes of its run."""
    returned: float | None = None
    """Return of the last evaluation, else of the training episodes."""
    stderr: float | None = None
    """Standard error of the return."""
    progress: float | None = None
    """Part of the run that is done, from 0 to 1."""
    attempts: int = 0

    @property
    def is_done(self) -> bool:
        """Return whether there is nothing left to do."""
        return self.state in DONE

    @property
    def left_s(self) -> float | None:
        """Return the seconds that a running job needs, by its progress."""
        if self.state != "running" or not self.progress or self.wall_s is None:
            return None
        return self.wall_s * (1.0 - self.progress) / self.progress


def read(job: Job) -> State:
    """Return the state of a job: status.json of its folder, and what its run has recorded so far."""
    status = rundir.read_status(job.folder)
    state = str(status.get("state", WAITING))
    ran = rundir.read_status(job.run)
    last = {} if state in (WAITING, *DONE) else last_row(job.run / "metrics.jsonl")
    returned = next((value for value in (_number(ran, "eval"), _number(ran, "train")) if value is not None), None)
    recorded = [last[tag] for tag in last if tag.startswith(("eval/", "train/")) and tag.endswith("/return")]
    return State(
        state,
        str(status.get("error", "") or ""),
        _whole(last, "env_steps") or _whole(ran, "env_steps"),
        _number(last, "wall_s") or _number(ran, "wall_s"),
        recorded[0] if recorded and state == "running" else returned,
        _number(ran, "eval_stderr"),
        1.0 if state in DONE else _number(last, "train/progress"),
        _whole(status, "attempts") or 0,
    )


def evaluations(job: Job, group: str | None) -> list[tuple[int, float]]:
    """Return (env_steps, return of a group) of every evaluation that a run has recorded; `group` None: the environment's first."""
    try:
        rows = read_rows(job.run / "metrics.jsonl", lambda tag: tag == "env_steps" or tag.startswith("eval/"))
    except (OSError, UserError):
        return []
    found = []
    for row in rows:
        tags = [tag for tag in row if tag.startswith("eval/") and tag.endswith("/return") and group in (None, tag.split("/")[1])]
        if tags:
            found.append((int(row["env_steps"]), row[tags[0]]))
    return found


def _number(found: Mapping[str, object], key: str) -> float | None:
    value = found.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _whole(found: Mapping[str, object], key: str) -> int | None:
    value = _number(found, key)
    return None if value is None or abs(value) >= 2**63 else int(value)
