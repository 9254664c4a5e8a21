"""The state of a run on the host between two iterations.

With the tensors of its parts it determines the rest of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from warprun.config.cadence import Moment, Recurring
from warprun.errors import UserError
from warprun.runs.measured import Measured, on_host
from warprun.runs.records.jsonl import JsonLines
from warprun.runs.records.records import RecordsEnd
from warprun.runs.records.sink import PREFIX


@dataclass
class Position:
    """The state of a run outside its tensors, in types that JSON has.

    After each iteration comes a boundary: the run evaluates, logs and saves, as far as these are due. A position is that
    of a run after a boundary; if `pending`, of a run that has done an iteration and has its boundary still to come.
    """

    iterations: int = 0
    """Completed iterations with their boundaries."""
    env_steps: int = 0
    """Environment steps after them."""
    pending: bool = False
    wall_s: float = 0.0
    """Seconds that the run has taken."""
    boundary_s: float = 0.0
    """`wall_s` at the last boundary."""
    began_s: float = 0.0
    """`wall_s` from which limits in time count: the end of the first iteration, which compiles."""
    iteration_s: float = 0.0
    """Duration of the last iteration; 0 for the first one of a process."""
    due_s: dict[str, float] = field(default_factory=dict)
    """Recurring task ("eval", "log", "checkpoint") -> `wall_s` when it was due last."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The last value of every metric."""
    losses: dict[str, float] = field(default_factory=dict)
    """The metrics of the last update."""
    diagnostics: dict[str, float] = field(default_factory=dict)
    """If `pending`: the agent's diagnostics of the last rollout, which is not saved."""
    replaced: int = 0
    """Environments that were reset because of a fault."""
    told: list[str] = field(default_factory=list)
    """Topics of the notes that have been shown, each of which is shown once."""
    solved: bool = False
    row_env_steps: int = 0
    """Environment steps of the last record."""
    files: dict[str, int] = field(default_factory=dict)
    """Files of the records -> bytes that are valid."""

    @property
    def records_end(self) -> RecordsEnd:
        """The end of the records."""
        return RecordsEnd(self.wall_s, self.row_env_steps, {JsonLines.name: 0} | self.files)


def at(boundary: Moment, end: RecordsEnd, cadences: Mapping[str, Recurring], measured: Measured) -> Position:
    """Return the position of a run whose last completed boundary is `boundary`, and whose records end at `end`."""
    return Position(
        iterations=boundary.iterations,
        env_steps=boundary.env_steps,
        wall_s=end.wall_s,
        boundary_s=boundary.seconds,
        due_s={name: cadence.due_s for name, cadence in cadences.items()},
        metrics=measured.metrics,
        losses=on_host(measured.losses),
        row_env_steps=end.env_steps,
        files=dict(end.files),
    )


def read(saved: Mapping[str, object]) -> Position:
    """Return the position in a checkpoint. Raises UserError if it is none."""
    known = {f.name: f for f in fields(Position)}
    position = Position()
    if saved.keys() != known.keys():
        raise UserError("the checkpoint is of another version of warprun: it cannot be resumed, only evaluated")
    for name, value in saved.items():
        if not _fits(getattr(position, name), value):
            raise UserError(f"the checkpoint is damaged: {name} is {value!s:.50}")
        setattr(position, name, value)
    if any(name != JsonLines.name and (not name.startswith(PREFIX) or "/" in name) for name in position.files):
        raise UserError("the checkpoint is damaged: it names files that are no records")
    return position


def _fits(default: object, value: object) -> bool:
    if isinstance(default, dict):
        return isinstance(value, dict) and all(type(entry) in (int, float) for entry in value.values())
    if isinstance(default, list):
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    if isinstance(default, bool):
        return isinstance(value, bool)
    return type(value) is int or (isinstance(default, float) and type(value) is float)
