"""The outcome of a run for programs and notebooks: numbers, records as rows or as a data frame, and curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warprun.errors import needs
from warprun.runs.records.jsonl import JsonLines, read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True)
class Result:
    """The outcome of a run."""

    folder: Path
    status: str
    """solved or finished; an interrupted run raises KeyboardInterrupt, and its status.json says interrupted."""
    env_steps: int
    wall_s: float
    eval_return: float | None
    """Mean return of the last evaluation, of several groups that of `eval.group`; None if there was none."""
    eval_stderr: float | None
    """Standard error of `eval_return`; None for a single episode."""
    best_return: float | None
    """Mean return of the best evaluation, biased upwards because it is the best of many; None if there was none."""
    train_return: float | None
    """Mean return of the training episodes in the last record that has any; None if no episode ended."""
    metrics: dict[str, float]
    """The last value of every metric."""
    summary: Mapping[str, float | str]
    """The lines that the run printed at its end: name -> number or text."""

    @property
    def solved(self) -> bool:
        """Whether the run ended because it had solved its environment."""
        return self.status == "solved"

    def rows(self) -> list[dict[str, float]]:
        """Return the records of the run, one for each log interval: env_steps, wall_s in seconds, and metrics."""
        return read_rows(self.folder / JsonLines.name)

    def frame(self) -> DataFrame:
        """Return `rows` as a data frame of pandas, NaN where a metric is missing. Raises UserError without pandas."""
        with needs("pandas", "notebook"):
            from pandas import DataFrame

        return DataFrame(self.rows())

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the returns of training and of evaluations against env_steps on axes of matplotlib, and return these.

        `axes` None: in a new figure. Raises UserError without matplotlib.
        """
        with needs("matplotlib", "plot"):
            from matplotlib import pyplot

        if axes is None:
            _, axes = pyplot.subplots(layout="constrained")
        rows = self.rows()
        tags = dict.fromkeys(tag for row in rows for tag in row if _is_return(tag))
        for tag in tags:
            steps, values = zip(*((row["env_steps"], row[tag]) for row in rows if tag in row), strict=True)
            axes.plot(steps, values, marker="o" if tag.startswith("eval/") else "", markersize=4, label=tag)
        axes.set(xlabel="env_steps", ylabel="return", title=self.folder.name)
        if tags:
            axes.legend()
        return axes


def _is_return(tag: str) -> bool:
    """Return whether a metric is a mean return of training episodes or of an evaluation, of all groups or of one."""
    return tag.startswith(("train/", "eval/")) and tag.rpartition("/")[2] == "return"
