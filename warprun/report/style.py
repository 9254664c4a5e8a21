"""How figures look: sizes for a page of a paper, colours that colour-blind readers and grey prints tell apart."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from warprun.report.compare import Comparison

COLORS = ("#0072B2", "#E69F00", "#000000", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#8C6D00")
"""The palette of Okabe and Ito, ordered so that neighbours differ in lightness; its yellow, too pale for lines, is darkened."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MOST_LINES = len(COLORS) * len(DASHES)
"""Settings that can be told apart."""
WIDTH, HALF_WIDTH = 6.8, 4.0
"""Inches: two columns of a page, and a figure of one panel."""
LABEL = 40
"""Most characters of a line of a label beside a panel."""
SETTINGS: Any = {
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
    """How one combination of settings is drawn, in all figures of a report."""

    color: str
    dash: Any
    marker: str


def styles(comparison: Comparison) -> dict[tuple[object, ...], Style]:
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
def drawing() -> Iterator[Any]:
    """Give pyplot with these settings, without a display."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(SETTINGS):
        yield pyplot


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
