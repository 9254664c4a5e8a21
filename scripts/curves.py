"""Figures of the learning curves that studies keep."""

from __future__ import annotations

import numpy as np
from common import DOCS, figure
from study import Picture, Runs, ended

COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#000000")
"""Of Okabe and Ito, for readers who are colour-blind."""


def draw(picture: Picture, runs: Runs) -> None:
    """Draw the median over seeds of each line, and the range from the least to the largest; labels are beside the lines."""
    with figure(DOCS / "figures" / picture.file, 1, (6.4, 3.4)) as (axes,):
        shown = [(case, label) for case, label in picture.lines.items() if case in runs]
        for (case, label), color in zip(shown, COLORS, strict=False):
            curves = [run[f"curve/{picture.metric}"] for run in ended(runs[case])]
            steps = np.linspace(max(each[0][0] for each in curves), min(each[0][-1] for each in curves), 200)
            values = np.array([np.interp(steps, *each) for each in curves])
            low, middle, high = values.min(0), np.median(values, 0), values.max(0)
            axes.plot(steps, middle, color=color, linewidth=1.8)
            axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
            # Where lines lie apart: half-way up for the first, and lower for the next, so that labels do not meet.
            at = int(np.argmax(middle > middle[0] + (0.7 - 0.35 * shown.index((case, label))) * (middle.max() - middle[0])))
            axes.annotate(label, (steps[at], middle[at]), (6, -12), textcoords="offset points", color=color, fontsize=9, fontweight="bold")
        if picture.threshold is not None:
            axes.axhline(picture.threshold, color="0.45", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
        axes.set(xlabel="environment steps", ylabel=picture.axis, xlim=(0, None))
        axes.xaxis.set_major_formatter("{x:,.0f}")
