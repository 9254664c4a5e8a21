"""Figures of many runs: their results over one or two numbers that differ, and all their learning curves in one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from warprun.report.compare import Comparison, on_grid, short
from warprun.report.figures import Canvas, mark_threshold, new_figure
from warprun.report.statistics import Interval
from warprun.report.style import COLORS, DASHES, HALF_WIDTH, MARKERS, WIDTH, Style, least_range, limits, logarithmic
from warprun.report.table import Line
from warprun.runs.records.terminal import si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

MANY = 50
"""Runs of an environment above which their learning curves get a picture of their own."""
LEAST_VALUES = 3
"""Values of a number from which on it has an axis; one with fewer is a choice, as an agent is."""
MOST_WRITTEN, MOST_TICKS = 64, 10
"""Most cells of a heat map whose values are written, and most values of an axis that are all written."""
MOST_SERIES = 6
"""Most rows of heat maps, and lines of a panel."""
NOTHING = "0.85"
"""Grey of a cell without a value."""
CAPTIONS = {
    "heatmap": "Results over two settings. Left: interquartile mean of the final return over the runs of a cell. Right: median env_steps to"
    " the threshold; grey: half of the runs or more do not reach it. Bright is better.",
    "response": "Results over one setting. Left: interquartile mean of the final return. Right: median env_steps to the threshold, where"
    " more than half of the runs reach it. Bands: 95 % bootstrap intervals over the runs of a value.",
    "members": "All learning curves in one picture. A thin line is a run, and ends where the run ended. Thick line: median over all runs;"
    " band: their middle half. Both count a run that has ended with its last value. Dashed: the threshold.",
}
"""Name of a figure -> its caption."""


def best(comparison: Comparison, found: Sequence[Line], most: int) -> tuple[Comparison, list[Line]]:
    """Return the `most` settings with the highest interquartile mean of the final return, best first, and their lines.

    Of equal ones those are better that reach the threshold earlier. Over several environments they are sorted by the sum of their ranks.
    """
    ranks: dict[tuple[object, ...], float] = {}
    lines = {(line.setting.env, line.setting.values): line for line in found}
    for env in comparison.envs:
        of_env = sorted((line for line in found if line.setting.env == env), key=_quality, reverse=True)
        for place, line in enumerate(of_env):
            ranks[line.setting.values] = ranks.get(line.setting.values, 0.0) + 1.0 - place / len(of_env)
    kept = sorted(ranks, key=lambda values: -ranks[values])[:most]
    chosen = [lines[env, values] for env in comparison.envs for values in kept if (env, values) in lines]
    return replace(comparison, settings=tuple(line.setting for line in chosen)), chosen


def _quality(line: Line) -> tuple[float, float]:
    """Return the interquartile mean, and of equal ones, such as the highest return there is, how early the threshold is reached."""
    return line.final["IQM"].value, -line.reached.env_steps.value if line.reached else 0.0


def numbers(comparison: Comparison) -> tuple[int, ...]:
    """Return the places in `comparison.by` of the settings that get an axis: numbers with several values."""
    columns = [{setting.values[place] for setting in comparison.settings} for place in range(len(comparison.by))]
    return tuple(
        place
        for place, values in enumerate(columns)
        if len(values) >= LEAST_VALUES and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    )


def _series(comparison: Comparison, found: Sequence[Line], places: Sequence[int]) -> dict[tuple[str, str], list[Line]]:
    """Return (environment, label of the other settings) -> lines, for all combinations of the settings that have no axis."""
    others = [place for place in range(len(comparison.by)) if place not in places]
    named = replace(comparison, by=tuple(comparison.by[place] for place in others))
    series: dict[tuple[str, str], list[Line]] = {}
    for line in found:
        label = named.label(tuple(line.setting.values[place] for place in others))
        series.setdefault((line.setting.env, label), []).append(line)
    return series


class _Result(NamedTuple):
    """A result that is shown over settings."""

    name: str
    of: dict[int, Interval]
    """Identity of a line -> its value; infinite if there is none."""
    is_low_better: bool

    def write(self, value: float) -> str:
        """Return a value for readers."""
        return si(value).replace(" ", "") if self.is_low_better else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _results(comparison: Comparison, lines: Sequence[Line]) -> list[_Result]:
    """Return the final return, and the steps to the threshold if a setting reaches it."""
    found = [_Result(f"final {comparison.settings[0].returns} return, IQM", {id(line): line.final["IQM"] for line in lines}, False)]
    steps = {id(line): line.reached.env_steps for line in lines if line.reached}
    if any(math.isfinite(each.value) for each in steps.values()):
        thresholds = {line.reached.threshold for line in lines if line.reached}
        it = f"{thresholds.pop():g}" if len(thresholds) == 1 else "threshold"
        found.append(_Result(f"env_steps to {it}, median", steps, True))
    return found


Point = tuple[float, float]
"""Values of two numbers."""


def heatmap(comparison: Comparison, found: Sequence[Line]) -> Figure | None:
    """Draw results over two numbers that differ; return None if others than two do."""
    places = numbers(comparison)
    series = _series(comparison, found, places)
    if len(places) != 2 or len(series) > MOST_SERIES:
        return None
    columns = len(_results(comparison, found))
    figure = new_figure(WIDTH if columns == 2 else HALF_WIDTH, 3.1 * len(series))
    panels = figure.subplots(len(series), columns, squeeze=False)
    for row, ((env, label), lines) in zip(panels, series.items(), strict=True):
        points = {id(line): (float(str(line.setting.values[places[0]])), float(str(line.setting.values[places[1]]))) for line in lines}
        results = _results(comparison, lines)
        for panel, result in zip(row, results, strict=False):
            values = {points[line]: each.value for line, each in result.of.items() if math.isfinite(each.value)}
            least = 0.1 * min(values.values()) if result.is_low_better else least_range(line.setting for line in lines)
            panel.set(xlabel=short(comparison.by[places[0]]), ylabel=short(comparison.by[places[1]]))
            _draw_heat(panel, list(points.values()), values, result, least)
        for panel in row[len(results) :]:
            panel.set_axis_off()
        row[0].set_title(f"{', '.join(filter(None, (env, label)))}: {row[0].get_title('left')}", loc="left")
    return figure


def _draw_heat(panel: Axes, points: Sequence[Point], values: Mapping[Point, float], result: _Result, least: float) -> None:
    """Draw the values of points as colours: as cells if most combinations of numbers are there, else as dots."""
    from matplotlib.colors import Normalize

    top = min(values.values()) if result.is_low_better else max(values.values())
    bottom = max(*values.values(), top + least) if result.is_low_better else min(*values.values(), top - least)
    low, high = sorted((bottom, top))
    norm, colors = Normalize(low, high), "viridis_r" if result.is_low_better else "viridis"
    drawn: ScalarMappable
    columns, rows = (sorted(set(numbers)) for numbers in zip(*points, strict=True))
    panel.grid(visible=False)
    at = [point for point, value in values.items() if value == top]
    named = f"{panel.get_xlabel()}={at[0][0]:g}, {panel.get_ylabel()}={at[0][1]:g}"
    where = f" in {len(at):,} of {len(points):,} cells" if len(at) > 1 else f"\nat {named}"
    panel.set_title(f"{result.name}\nbest: {result.write(top)}{where}", loc="left")
    if 2 * len(points) < len(columns) * len(rows):
        panel.scatter([x for x, _ in points], [y for _, y in points], s=12, color=NOTHING)
        drawn = panel.scatter([x for x, _ in values], [y for _, y in values], s=12, c=list(values.values()), cmap=colors, norm=norm)
        for axis, values_of_axis in ((panel.xaxis, columns), (panel.yaxis, rows)):
            if _is_logarithmic(values_of_axis):
                logarithmic(axis)
    else:
        panel.set_facecolor(NOTHING)
        cells = np.full((len(rows), len(columns)), np.nan)
        for (x, y), value in values.items():
            cells[rows.index(y), columns.index(x)] = value
        drawn = panel.imshow(cells, origin="lower", aspect="auto", interpolation="nearest", cmap=colors, norm=norm)
        _label_cells(panel.xaxis, columns)
        _label_cells(panel.yaxis, rows)
        if cells.size <= MOST_WRITTEN:
            for (y, x), value in np.ndenumerate(cells):
                if math.isfinite(value):
                    dark = abs(value - bottom) < 0.6 * abs(top - bottom)
                    panel.text(x, y, result.write(value), ha="center", va="center", fontsize=6, color="white" if dark else "black")
        elif len(at) == 1:
            panel.plot(columns.index(at[0][0]), rows.index(at[0][1]), marker="o", markersize=9, markerfacecolor="none", color="black")
    bar = panel.figure.colorbar(drawn, ax=panel, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    if len(values) < len(points):
        bar.set_label("grey: not reached")


def _label_cells(axis: XAxis | YAxis, numbers: Sequence[float]) -> None:
    """Write the values of cells of equal width; of many the powers of ten, or round numbers, at their places between cells."""
    from matplotlib.ticker import MaxNLocator

    places = np.arange(len(numbers))
    if len(numbers) <= MOST_TICKS:
        axis.set_ticks(places, [f"{number:g}" for number in numbers])
        return
    if _is_logarithmic(numbers):
        shown = 10.0 ** np.arange(math.ceil(math.log10(numbers[0]) - 1e-9), math.floor(math.log10(numbers[-1]) + 1e-9) + 1)
        at = np.interp(np.log(shown), np.log(numbers), places)
    else:
        shown = np.asarray(MaxNLocator(6).tick_values(numbers[0], numbers[-1]))
        shown = shown[(shown >= numbers[0]) & (shown <= numbers[-1])]
        at = np.interp(shown, numbers, places)
    axis.set_ticks(at, [f"{number:g}" for number in shown])


def _is_logarithmic(numbers: Sequence[float]) -> bool:
    """Return whether sorted numbers over a decade or more are spaced more evenly by their ratios than by their differences."""
    if numbers[0] <= 0 or numbers[-1] < 10 * numbers[0]:
        return False
    steps, ratios = np.diff(numbers), np.diff(np.log(numbers))
    return bool(ratios.std() / ratios.mean() < steps.std() / steps.mean())


def response(comparison: Comparison, found: Sequence[Line]) -> Figure | None:
    """Draw results over one number that differs, a line for each combination of the others; return None if others than one do."""
    places = numbers(comparison)
    series = _series(comparison, found, places)
    names = list(dict.fromkeys(label for _, label in series))
    if len(places) != 1 or len(names) > MOST_SERIES:
        return None
    looks = {name: Style(COLORS[n], DASHES[n % len(DASHES)], MARKERS[n]) for n, name in enumerate(names)}
    columns = len(_results(comparison, found))
    canvas = Canvas(comparison, columns, 2.5, width=WIDTH if columns == 2 else HALF_WIDTH)
    for env, row in zip(comparison.envs, canvas.panels, strict=True):
        lines = [line for line in found if line.setting.env == env]
        results = _results(comparison, lines)
        for panel in row[len(results) :]:
            panel.set_axis_off()
        for panel, result in zip(row, results, strict=False):
            for name in names:
                _draw_response(panel, series.get((env, name), []), places[0], result, looks[name])
            _span(panel.xaxis, sorted({float(str(line.setting.values[places[0]])) for line in lines}))
            panel.set(xlabel=short(comparison.by[places[0]]), ylabel=result.name)
        row[0].set_ylim(limits(row[0].dataLim.intervaly, least_range(line.setting for line in lines)))
        for panel in row[1 : len(results)]:
            panel.set_ylim(0, 1.08 * panel.dataLim.y1)
    if len(names) > 1:
        canvas.legend(looks, marked=True)
    return canvas.figure


def _span(axis: XAxis, numbers: Sequence[float]) -> None:
    """Let an axis show sorted numbers with a margin, also those without a result."""
    is_log = _is_logarithmic(numbers)
    ends = np.log([numbers[0], numbers[-1]]) if is_log else np.array([numbers[0], numbers[-1]])
    ends = ends + 0.04 * np.ptp(ends) * np.array([-1, 1])
    axis.axes.set_xlim(np.exp(ends) if is_log else ends)
    if is_log:
        logarithmic(axis)


def _draw_response(panel: Axes, lines: Sequence[Line], place: int, result: _Result, style: Style) -> None:
    points = sorted((float(str(line.setting.values[place])), *result.of[id(line)]) for line in lines if id(line) in result.of)
    if not points:
        return
    at, value, low, high = np.array(points).T
    shown = np.isfinite(value)
    value = np.where(shown, value, np.nan)
    high = np.where(np.isinf(high), np.nanmax(value, initial=0.0), high)
    panel.fill_between(at, low, high, where=shown, color=style.color, alpha=0.2, linewidth=0)
    dots = "" if len(points) > MANY else style.marker
    panel.plot(at, value, color=style.color, linestyle=style.dash, marker=dots, markersize=4)


def members(comparison: Comparison, found: Sequence[Line]) -> Figure | None:
    """Draw the learning curves of all runs, their median and their middle half.

    Return None if no environment has many runs, or all have a single point.
    """
    from matplotlib.collections import LineCollection

    if max(sum(len(setting.runs) for setting in comparison.of_env(env)) for env in comparison.envs) <= MANY:
        return None
    if all(len(curve.value) < 2 for env in comparison.envs for setting in comparison.of_env(env) for curve in setting.curves()):
        return None
    canvas = Canvas(comparison, 1, 3.2)
    for env, (panel,) in zip(comparison.envs, canvas.panels, strict=True):
        settings = comparison.of_env(env)
        curves = [curve for setting in settings for curve in setting.curves()]
        grid, values = on_grid(curves, "env_steps")
        quarter, middle, three = np.percentile(values, (25, 50, 75), axis=0)
        lines = LineCollection([np.column_stack((curve.env_steps, curve.value)) for curve in curves], rasterized=True)
        lines.set(color=COLORS[0], linewidth=0.5, alpha=min(0.6, max(0.06, 40 / len(curves))))
        panel.add_collection(lines)
        panel.fill_between(grid, quarter, three, color=COLORS[1], alpha=0.35, linewidth=0)
        panel.plot(grid, np.column_stack((quarter, three)), color=COLORS[1], linewidth=1.0)
        panel.plot(grid, middle, color="white", linewidth=3.6)
        panel.plot(grid, middle, color="black", linewidth=2.0)
        mark_threshold(panel, comparison, env)
        panel.set_xlim(0, grid[-1])
        panel.set_ylim(limits((values.min(), values.max()), least_range(settings)))
        panel.set(xlabel="environment steps", ylabel=f"{'evaluation' if settings[0].returns == 'eval' else 'training'} return")
        reached = [line.reached for line in found if line.reached and line.setting.env == env]
        solved = f", {sum(each.runs for each in reached):,} of them reach {reached[0].threshold:g}" if reached else ""
        panel.set_title(f"{env}: {len(curves):,} runs{solved}", loc="left", fontweight="bold")
        ends = {"upper quartile": three[-1], "median": middle[-1], "lower quartile": quarter[-1]}
        for (name, end), height in zip(ends.items(), _apart(panel, list(ends.values())), strict=True):
            panel.annotate(
                f"{name} {end:.4g}",
                (1.0, height),
                xytext=(4, 0),
                xycoords=panel.get_yaxis_transform(),
                textcoords="offset points",
                va="center",
                color="black" if name == "median" else "#8C5A00",
                fontweight="bold" if name == "median" else "normal",
            )
    return canvas.figure


def _apart(panel: Axes, heights: Sequence[float]) -> list[float]:
    """Return heights, the highest first, moved so far apart that labels at them do not overlap, within the panel."""
    low, high = panel.get_ylim()
    gap = 0.07 * (high - low)
    placed: list[float] = []
    for height in heights:
        placed.append(min(height, placed[-1] - gap) if placed else height)
    lift = max(0.0, low + gap / 2 - placed[-1])
    return [height + lift for height in placed]
