"""Axes of figures: ranges that do not make noise look large, numbers without an offset, labels that do not overlap. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from warprun.report.compare import Setting

SHARE_OF_TRAINING, SHARE_OF_LARGEST = 0.1, 0.01
"""An axis of returns shows at least these shares: of the range of the returns during training, and of the largest one."""
MARGIN = 0.08
"""Of an axis at both ends, as a share of what it shows."""
GAP = 4.0
"""Least points between the labels of an axis: those of a space."""


def least_range(settings: Iterable[Setting]) -> float:
    """Return how much an axis of the returns of these settings shows at least, so that settings look different only if they are."""
    returns = np.concatenate([curve.value for setting in settings for curve in setting.curves()])
    return max(SHARE_OF_TRAINING * float(np.ptp(returns)), SHARE_OF_LARGEST * float(np.abs(returns).max())) or 1.0


def limits(values: Iterable[float], least: float) -> tuple[float, float]:
    """Return the ends of an axis for `values`, which are finite: at least `least` apart, with a margin."""
    low, high = min(values), max(values)
    shown = max(least, high - low)
    more = (shown - (high - low)) / 2 + MARGIN * shown
    return low - more, high + more


def logarithmic(axis: Any) -> None:
    """Make an axis logarithmic, with labels at the powers of ten; at 1, 2 and 5 if it has few of these."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_formatter(NullFormatter())


def finish(figure: Any) -> None:
    """Write the numbers at all axes in full, lay the figure out, and leave out labels that have no room; its layout stays from then on."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogFormatter, ScalarFormatter

    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    for axis in axes:
        if isinstance(axis.get_major_formatter(), ScalarFormatter | LogFormatter):
            large = np.abs(axis.get_view_interval()).max() >= 1e4
            axis.set_major_formatter(EngFormatter(sep=" ") if large else "{x:g}")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axis in axes:
        if not isinstance(axis.get_major_formatter(), FuncFormatter):  # which has the names of settings
            while _is_crowded(axis):
                axis.set_ticks(axis.get_majorticklocs()[::2])


def _is_crowded(axis: Any) -> bool:
    """Return whether labels of an axis overlap, or nearly."""
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high and tick.label1.get_visible()]
    boxes = [tick.label1.get_window_extent().padded(GAP / 2 * axis.figure.dpi / 72) for tick in ticks]
    return any(one.overlaps(other) for one, other in pairwise(boxes))
