"""Figures of the learning curves that studies keep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from common import DOCS, figure
from study import Picture, Runs, ended

from warprun.report.style import COLORS


def draw(picture: Picture, runs: Runs) -> None:
    """Draw the runs of each line thinly and their median over seeds; labels are beside the lines."""
    shown = {label: [run[f"curve/{picture.metric}"] for run in ended(runs[case])] for case, label in picture.lines.items()}
    middles = {label: over_seeds(curves, picture.until) for label, curves in shown.items()}
    with figure(DOCS / "figures" / picture.file, 1, (6.4, 3.6)) as (axes,):
        for (label, curves), color in zip(shown.items(), COLORS, strict=False):
            for steps, values in curves:
                axes.plot(steps, values, color=color, linewidth=0.7, alpha=0.45)
            steps, middle = middles[label]
            axes.plot(steps, middle, color=color, linewidth=2.4)
            others = [np.interp(steps, *each) for name, each in middles.items() if name != label]
            gaps = np.min([np.abs(middle - other) for other in others], axis=0)
            at = int(np.where(steps < 0.8 * picture.until, gaps, 0.0).argmax())  # where the line lies apart, and the label has room
            above = all(middle[at] >= other[at] for other in others)
            place = {"xytext": (-8, 8), "ha": "right"} if above else {"xytext": (8, -16), "ha": "left"}
            axes.annotate(label, (steps[at], middle[at]), textcoords="offset points", color=color, fontweight="bold", fontsize=11, **place)
        axes.axhline(picture.threshold, color="0.45", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        axes.annotate(f"bar {picture.threshold:g}", (0, picture.threshold), (4, 3), textcoords="offset points", color="0.35", fontsize=8)
        axes.set(xlabel="environment steps", ylabel=picture.axis, xlim=(0, picture.until))
        axes.xaxis.set_major_formatter("{x:,.0f}")


def over_seeds(curves: Sequence[Sequence[Sequence[float]]], until: int) -> tuple[np.ndarray, np.ndarray]:
    """Return steps that all curves have, up to `until`, and the median there."""
    steps = np.linspace(max(each[0][0] for each in curves), min(until, *(each[0][-1] for each in curves)), 200)
    return steps, np.median([np.interp(steps, *each) for each in curves], 0)
