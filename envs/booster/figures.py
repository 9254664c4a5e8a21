"""Draw the figures of a booster run: IMINER and VIMIN over time, and the spectrum of IMINER. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from warprun.envs.booster.analysis import LEARNED, NONE, PI, PID, spectrum
from warprun.envs.booster.control import Course
from warprun.envs.booster.model import Tables
from warprun.envs.booster.published import RATE, SETTING

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
LINES: dict[str, dict[str, str | float]] = {
    NONE: {"color": "#999999", "linewidth": 0.9},
    PI: {"color": "#e69f00", "linewidth": 0.9},
    PID: {"color": "#009e73", "linewidth": 0.9},
    LEARNED: {"color": "#0072b2", "linewidth": 1.2},
}
"""Looks of the lines, in the order in which they are drawn."""
SMALL_PRINT = "A surrogate fitted to published numbers; no digital twin of the Fermilab Booster."
CLOSE = 150
"""Samples that the right panels show."""
SHOWN = 150
"""Samples of a frame of a film."""


def draw(folder: Path, courses: Mapping[str, Course]) -> None:
    """Write `regulation.png` and `spectrum.png`."""
    with pyplot.rc_context(STYLE):
        for name, figure in (("regulation", regulation(courses)), ("spectrum", spectra(courses))):
            figure.supxlabel(SMALL_PRINT, x=0.99, ha="right", fontsize=6, color="0.4")
            figure.savefig(folder / f"{name}.png", dpi=150)
            pyplot.close(figure)


def regulation(courses: Mapping[str, Course]) -> Figure:
    """Draw IMINER and VIMIN of the whole episode, and of its calmest part."""
    figure, panels = pyplot.subplots(2, 2, figsize=(10, 5.4), sharey="row", width_ratios=(1.6, 1), layout="constrained")
    steps = max(course.delta.shape[1] for course in courses.values())
    calm = quietest(courses[NONE].iminer[0], CLOSE)
    for column, (first, last) in enumerate(((0, steps), calm)):
        for name, look in LINES.items():
            for row, values in enumerate((courses[name].iminer[0], SETTING + courses[name].delta[0])):
                shown = values[first:last]
                panels[row, column].plot(np.arange(first, first + len(shown)) / RATE, shown, label=name, **look)
        panels[1, column].set_xlabel("time / s")
    panels[0, 0].axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    panels[0, 0].set(ylabel="IMINER", title="one super-cycle")
    panels[0, 1].set_title("a part of it without a burst")
    panels[1, 0].set_ylabel("VIMIN")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside upper center", ncols=4)
    return figure


def quietest(iminer: np.ndarray, count: int) -> tuple[int, int]:
    """Return the first sample, and the one after the last, of the `count` samples with the least mean square of IMINER [T]."""
    known = iminer[np.isfinite(iminer)]
    if len(known) <= count:
        return 0, count
    energy = np.concatenate([[0.0], np.cumsum(known**2)])
    first = int(np.argmin(energy[count:] - energy[:-count]))
    return first, first + count


def spectra(courses: Mapping[str, Course]) -> Figure:
    """Draw the power density of IMINER under each regulator."""
    figure, panel = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    for name, look in LINES.items():
        iminer = courses[name].iminer[0]
        frequency, power = spectrum(iminer[np.isfinite(iminer)])
        if len(frequency) > 2:
            panel.semilogy(frequency[1:], power[1:].clip(1e-9), label=name, **look)
    panel.set(xlabel="frequency / Hz", ylabel="power density of IMINER / Hz$^{-1}$", xlim=(0, RATE / 2))
    panel.grid(alpha=0.2)
    handles, labels = panel.get_legend_handles_labels()
    panel.legend(handles[::-1], labels[::-1])
    return figure


def draw_moment(axes: Axes, past: Any, tables: Tables) -> None:
    """Draw IMINER and VIMIN of the last samples, and the edges of the window.

    `past` is a `State` whose fields are arrays of all steps until now.
    """
    grid = axes.figure.add_gridspec(2, 1)
    axes.set_subplotspec(grid[0])
    below = axes.figure.add_subplot(grid[1])
    first = max(0, len(past.iminer) - SHOWN)
    steps = np.arange(first, len(past.iminer))
    axes.axhline(0.0, color="0.8", linewidth=0.8)
    axes.fill_between(steps, -np.abs(past.iminer[first:]), np.abs(past.iminer[first:]), color="#d55e00", alpha=0.15, linewidth=0)
    for panel, values, color, label in (
        (axes, past.iminer, "#d55e00", "IMINER"),
        (below, SETTING + past.delta, "#0072b2", "VIMIN"),
    ):
        panel.plot(steps, values[first:], color=color, linewidth=1.3)
        panel.plot(steps[-1], values[-1], "o", color=color, markersize=5, clip_on=False)
        panel.set(ylabel=label, xlim=(first - 0.5, first + SHOWN))
        panel.spines[["top", "right"]].set_visible(False)
    axes.set(ylim=(-1.0, 1.0), title="surrogate fitted to published numbers")
    for edge in (tables.low, tables.high):
        below.axhline(SETTING + edge, color="0.5", linestyle="--", linewidth=0.9)
    margin = 0.15 * (tables.high - tables.low)
    below.set(xlabel="step", ylim=(SETTING + tables.low - margin, SETTING + tables.high + margin))
    axes.figure.set_size_inches(7, 4)
