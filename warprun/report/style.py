"""The looks of figures: sizes for a page of a paper, and colours that differ for colour-blind readers and in grey
prints.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from warprun.report.compare import Comparison, Setting

if TYPE_CHECKING:
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure
    from matplotlib.typing import LineStyleType, RcKeyType

COLORS = ("#0072B2", "#E69F00", "#000000", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#8C6D00")
"""The palette of Okabe and Ito, ordered so that neighbours differ in lightness; its yellow, too pale for lines, is darkened."""
DASHES: tuple[LineStyleType, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MOST_LINES = len(COLORS) * len(DASHES)
"""Settings that can be told apart."""
WIDTH, HALF_WIDTH = 6.8, 4.0
"""Inches: two columns of a page, and a figure of one panel."""
LABEL = 40
"""Most characters of a line of a label beside a panel."""
SETTINGS: dict[RcKeyType, object] = {
    "font.size": 8.5,
    "axes.labelsize": 8.5,
    "axes.titlesize": 8.5,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.prop_cycle": f"cycler('color', {list(COLORS)})",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "text.parse_math": False,  # values of users can contain $
    "svg.hashsalt": "warprun",  # the same runs give the same file
}
WITHOUT_DATE = {"Date": None}


class Style(NamedTuple):
    """The looks of one combination of settings in all figures of a report."""

    color: str
    dash: LineStyleType
    marker: str


Styles: TypeAlias = dict[tuple[object, ...], Style]
"""Combination of the values of the compared settings -> style."""


def styles(comparison: Comparison) -> Styles:
    """Return the style of every combination that is compared.

    Of two compared settings the first selects the colour and the second the dashes, if there are enough of them.
    """
    kinds = comparison.kinds
    columns = [list(dict.fromkeys(column)) for column in zip(*kinds, strict=True)]
    if len(columns) == 2 and len(columns[0]) <= len(COLORS) and len(columns[1]) <= len(DASHES):
        places = [(columns[0].index(first), columns[1].index(second)) for first, second in kinds]
    else:
        places = [(n % len(COLORS), (n + n // len(COLORS)) % len(DASHES)) for n in range(len(kinds))]
    return {
        kind: Style(COLORS[c], DASHES[d], MARKERS[n % len(MARKERS)]) for n, (kind, (c, d)) in enumerate(zip(kinds, places, strict=True))
    }


@contextmanager
def drawing() -> Iterator[None]:
    """Draw figures with these settings in this context."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def legend_shape(labels: Sequence[str], width: float) -> tuple[int, int, float]:
    """Return the columns of a legend below a figure of `width` inches, the most characters of a line in it, and its height in inches."""
    characters = int(17 * width)
    longest = max(map(len, labels), default=1)
    most = max(1, min(len(labels), 4, characters // (longest + 9)))
    rows = math.ceil(len(labels) / most)
    lines = sum(folded(label, characters - 9).count("\n") + 1 for label in labels) if most == 1 else rows
    return math.ceil(len(labels) / rows), characters - 9, 0.17 * lines


def folded(label: str, width: int) -> str:
    """Return a label in lines of at most `width` characters, if its words are not longer."""
    return "\n".join(textwrap.wrap(label, width, break_long_words=True, break_on_hyphens=False)) or label


def row_height(labels: Iterable[str]) -> float:
    """Return the height in inches of rows with these labels beside them."""
    return 0.11 + 0.14 * max(label.count("\n") + 1 for label in labels)


SHARE_OF_TRAINING, SHARE_OF_LARGEST = 0.1, 0.01
"""Least range of an axis of returns, as a share of the range of returns during training, and of the largest return."""
MARGIN = 0.08
"""Free space at both ends of an axis, as a share of its range."""
GAP = 4.0
"""Least distance between the labels of an axis, in points: that of a space."""


def least_range(settings: Iterable[Setting]) -> float:
    """Return the least range of an axis of returns of these settings, so that settings look different only if they are."""
    returns = np.concatenate([curve.value for setting in settings for curve in setting.curves()])
    return max(SHARE_OF_TRAINING * float(np.ptp(returns)), SHARE_OF_LARGEST * float(np.abs(returns).max())) or 1.0


def limits(values: Iterable[float], least: float) -> tuple[float, float]:
    """Return the ends of an axis for `values`, which are finite: at least `least` apart, with a margin."""
    low, high = min(values), max(values)
    shown = max(least, high - low)
    more = (shown - (high - low)) / 2 + MARGIN * shown
    return low - more, high + more


def logarithmic(axis: XAxis | YAxis) -> None:
    """Make an axis logarithmic, with labels at the powers of ten; at 1, 2 and 5 if it has few of these."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_formatter(NullFormatter())


def finish(figure: Figure) -> None:
    """Write the numbers at all axes in full, lay the figure out for good, and remove labels that have no room."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogFormatter, ScalarFormatter

    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    for axis in axes:
        if isinstance(axis.get_major_formatter(), ScalarFormatter | LogFormatter):
            large = np.abs(axis.get_view_interval()).max() >= 1e4
            axis.set_major_formatter(EngFormatter(sep=" ") if large else "{x:g}")
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # with another one, the place-holder of "none" too, each file is drawn twice
    for axis in axes:
        if axis.axis_name == "x" or not isinstance(axis.get_major_formatter(), FuncFormatter):  # which has the names of settings
            while _is_crowded(axis):
                axis.set_ticks(axis.get_majorticklocs()[::2])


def _is_crowded(axis: XAxis | YAxis) -> bool:
    """Return whether labels of an axis overlap, or nearly."""
    low, high = sorted(axis.get_view_interval())
    axis.get_majorticklabels()  # moves the ticks to where they were set
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high and tick.label1.get_visible()]
    boxes = [tick.label1.get_window_extent().padded(GAP / 2 * axis.figure.dpi / 72) for tick in ticks]
    return any(one.overlaps(other) for one, other in pairwise(boxes))
