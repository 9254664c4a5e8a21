"""Plain lines for a log file, easy to grep: `grep -o ' return=[^ ]*' slurm.out`."""

from __future__ import annotations

import time

from warprun.runs.records.numbers import duration, number, si
from warprun.runs.records.progress import Progress
from warprun.runs.records.sink import Row, Sink


class PlainLines(Sink):
    """Print a line per log interval, but at most one every `every_s` seconds."""

    def __init__(self, progress: Progress, every_s: float = 5.0) -> None:
        self._progress = progress
        self._every_s = every_s
        self._next = 0.0

    def log(self, row: Row) -> None:
        """Print a line, unless the last one is younger than `every_s`."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every_s
            print(line(self._progress), flush=True)

    def message(self, text: str) -> None:
        """Print the text."""
        print(text, flush=True)


def line(progress: Progress) -> str:
    """Return the progress of a run as `key=value` words, in ASCII, for log files of unknown encoding."""
    words = {"wall": duration(progress.wall_s), "env_steps": si(progress.env_steps)}
    if progress.fraction is not None:
        words["done"] = f"{progress.fraction:.0%}"
    if progress.steps_per_s is not None:
        words["env_steps/s"] = si(progress.steps_per_s)
    for group, train_return, eval_return, length in progress.outcomes:
        part = f"{group}." if group else ""
        outcome = {"return": train_return, "eval": eval_return, "length": length}
        words |= {f"{part}{key}": number(value) for key, value in outcome.items() if value is not None}
    words |= {part: f"{share:.0%}" for part, share in progress.shares.items()}
    if progress.left_s is not None:
        words["left"] = duration(progress.left_s)
    return " ".join(f"{key}={value.replace(' ', '')}" for key, value in words.items())
