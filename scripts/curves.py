"""Figures of the learning curves that studies keep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from common import DOCS, figure
from study import Picture, Runs, ended

COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#000000")
"""Of Okabe and Ito, for readers who are colour-blind."""


def draw(picture: Picture, runs: Runs) -> None:
    """Draw the median over seeds of each line, and the range from the least to the largest; labels are beside the lines."""
    shown = {label: over_seeds([run[f"curve/{picture.metric}"] for run in ended(runs[case])]) for case, label in picture.lines.items()}
    with figure(DOCS / "figures" / picture.file, 1, (6.4, 3.4)) as (axes,):
        for (label, (steps, low, middle, high)), color in zip(shown.items(), COLORS, strict=False):
            axes.plot(steps, middle, color=color, linewidth=1.8)
            axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
            others = [np.interp(steps, each[0], each[2]) for name, each in shown.items() if name != label]
            gaps = np.min([np.abs(middle - other) for other in others], axis=0)
            at = int(gaps.argmax())  # where the line lies apart from the others
            above = all(middle[at] >= other[at] for other in others)
            place = {"xytext": (-6, 4), "ha": "right"} if above else {"xytext": (6, -12), "ha": "left"}
            axes.annotate(label, (steps[at], middle[at]), textcoords="offset points", color=color, fontweight="bold", **place)
        if picture.threshold is not None:
            axes.axhline(picture.threshold, color="0.45", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
        axes.set(xlabel="environment steps", ylabel=picture.axis, xlim=(0, None))
        axes.xaxis.set_major_formatter("{x:,.0f}")


def over_seeds(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return steps that all curves have, and the least, the median and the largest value there."""
    steps = np.linspace(max(each[0][0] for each in curves), min(each[0][-1] for each in curves), 200)
    values = np.array([np.interp(steps, *each) for each in curves])
    return steps, values.min(0), np.median(values, 0), values.max(0)
