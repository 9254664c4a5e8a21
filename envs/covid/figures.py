"""Draw the figures of a covid run: policies over time, states over time, health against economy. Needs matplotlib."""

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib
import numpy as np

from warprun.envs.covid.data import load
from warprun.envs.covid.report import Course
from warprun.envs.covid.tables import FIRST_DAY, FULL_SUBSIDY_DAY, PLANNER, POPULATION, STATES, SUBSIDY_LEVELS, Tables

matplotlib.use("agg")
from matplotlib import colors, dates, pyplot
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

COLORS = {"learned": "#0072b2", "always open": "#e69f00", "always closed": "#009e73", "historical": "#444444"}
MARKS = {"learned": "o", "always open": "^", "always closed": "s", "historical": "D"}
ABOVE = {"learned": 12, "always open": 0, "always closed": 0, "historical": -12}
"""Offset of a label above its mark, in points: the learned policy may be near the historical one."""
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
TITLES = ("stringency level, mean over people", "deaths until then", "unemployed, % of the people", "subsidies, billion USD a day")
"""Titles of the panels that show the four quantities of the country."""
CODES = """
AL AK AZ AR CA CO CT DE DC FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO
MT NE NV NH NJ NM NY NC ND OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY
"""
"""Codes of the states in the order of the data, that of their names."""
TILES = """
AK  .  .  .  .  .  .  .  .  . VT ME
WA MT ND MN WI MI  .  . NY  . NH MA
OR ID SD IA IL IN OH PA NJ CT RI  .
NV WY NE MO KY WV VA MD DE  .  .  .
CA UT CO KS AR TN NC DC  .  .  .  .
 . AZ NM OK LA MS AL GA SC  .  .  .
HI  .  . TX  .  .  .  . FL  .  .  .
"""
"""Where a map has the states."""
SHADES = colors.LinearSegmentedColormap.from_list("levels", ("#f4f4f4", "#56b4e9", "#0072b2"), 10)
"""Colors of the levels 1 to 10; black letters can be read on all of them."""
SMALL_PRINT = "Model: Trott et al. 2021, a proof of concept, not for real policy making."


def draw(folder: Path, courses: Mapping[str, Course], start: int, vaccines: int) -> None:
    """Write three PNG files of episodes that begin at row `start` of the data; vaccines are delivered from row `vaccines` on."""
    with pyplot.rc_context(STYLE):
        for name, figure in (
            ("policies_over_time", policies_over_time(courses, start, vaccines)),
            ("states_over_time", states_over_time(courses["learned"], start)),
            ("health_economy", health_economy(courses)),
        ):
            figure.supxlabel(SMALL_PRINT, x=0.99, ha="right", fontsize=6, color="0.4")
            figure.savefig(folder / f"{name}.png", dpi=150)
            pyplot.close(figure)


def policies_over_time(courses: Mapping[str, Course], start: int, vaccines: int) -> Figure:
    """Draw stringency, deaths, unemployment and subsidies of the country, one line per policy."""
    figure, panels = pyplot.subplots(2, 2, figsize=(9, 5.8), sharex=True, layout="constrained")
    people = load().population / load().population.sum()
    for name, shown in courses.items():
        days = calendar(start, len(shown.level))
        lines = (shown.level @ people, shown.dead[:, PLANNER], shown.unemployed[:, PLANNER], shown.subsidy[:, PLANNER] / 1e9)
        for panel, line in zip(panels.flat, lines, strict=True):
            panel.plot(days, line, color=COLORS[name], label=name, linewidth=2 if name == "learned" else 1.3)
        if name == "learned":
            low, high = np.quantile(shown.level, (0.1, 0.9), axis=1)
            panels[0, 0].fill_between(days, low, high, color=COLORS[name], alpha=0.15, linewidth=0, label="learned, 80 % of states")
    first, last = calendar(start, 1)[0], calendar(start, len(courses["learned"].level))[-1]
    delivered = FIRST_DAY + timedelta(vaccines)
    for panel, title in zip(panels.flat, TITLES, strict=True):
        panel.set_title(title, loc="left", fontsize=10)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.2)
        months(panel, every=4)
        if first < delivered < last:
            panel.axvline(delivered, color="0.6", linestyle=":", linewidth=1)
    if first < delivered < last:
        where = panels[0, 0].get_xaxis_transform()
        panels[0, 0].text(delivered, 0.01, " vaccines from here on", transform=where, va="bottom", fontsize=7, color="0.4")
    # Deaths differ by a factor of fifty between policies.
    panels[0, 1].set_yscale("log")
    panels[0, 1].set_ylim(bottom=3000)
    panels[0, 1].yaxis.set_major_formatter(lambda deaths, _: f"{deaths:,.0f}")
    panels[0, 0].set_yticks(range(0, 11, 2))
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return figure


def states_over_time(shown: Course, start: int) -> Figure:
    """Draw the learned policy state by state: level, deaths and unemployment."""
    people = load().population
    deaths = 1e5 * shown.dead[:, :STATES] / people
    levels = colors.BoundaryNorm(np.arange(0.5, 11), 256)
    values = (
        ("stringency level", shown.level, "viridis", levels),
        ("deaths per 100,000 people until then", deaths.clip(1), "magma_r", colors.LogNorm(1, max(1000, deaths.max()))),
        ("unemployed, % of the people", shown.unemployed[:, :STATES], "cividis", colors.Normalize(0)),
    )
    figure, panels = pyplot.subplots(1, 3, figsize=(11, 7.4), sharey=True, layout="constrained")
    days = dates.date2num(calendar(start, len(shown.level)))
    for panel, (title, field, palette, scale) in zip(panels, values, strict=True):
        extent = (days[0], days[-1], STATES - 0.5, -0.5)
        image = panel.imshow(field.T, aspect="auto", interpolation="nearest", cmap=palette, norm=scale, extent=extent)
        panel.xaxis_date()
        months(panel, every=6)
        panel.set_title(title, loc="left", fontsize=10)
        panel.tick_params(axis="y", length=0)
        bar = figure.colorbar(image, ax=panel, location="bottom", shrink=0.8, aspect=30)
        if scale is levels:
            bar.set_ticks(range(1, 11))
        elif palette == "magma_r":
            bar.ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    panels[0].set_yticks(range(STATES), [str(name) for name in load().states], fontsize=6.5)
    panels[0].set_ylim(STATES - 0.5, -0.5)
    return figure


def health_economy(courses: Mapping[str, Course]) -> Figure:
    """Draw the mean indices of the country for every policy, and those of every state for the learned one."""
    days = min(len(shown.health) for shown in courses.values())
    weight = courses["learned"].weight
    figure, panel = pyplot.subplots(figsize=(6, 4.8), layout="constrained")
    means = {name: (shown.health[:days].mean(0), shown.economy[:days].mean(0)) for name, shown in courses.items()}
    panel.scatter(*(m[:STATES] for m in means["learned"]), s=9, color=COLORS["learned"], alpha=0.35, linewidth=0)
    for name, (health, economy) in means.items():
        x, y = health[PLANNER], economy[PLANNER]
        # The learned policy may cover the historical one, so its mark is smaller.
        size, above = (60, 4) if name == "learned" else (110, 3)
        panel.scatter(x, y, s=size, color=COLORS[name], marker=MARKS[name], edgecolor="white", zorder=above)
        right = x < np.mean(panel.get_xlim())
        panel.annotate(
            f"{name}\n{weight * x + (1 - weight) * y:.2f}",
            (x, y),
            (10 if right else -10, ABOVE[name]),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            color=COLORS[name],
            fontweight="bold",
            zorder=5,
        )
    # Lines of equal reward of the planner.
    (left, end), (bottom, top) = panel.get_xlim(), panel.get_ylim()
    x = np.array([left, end])
    for worth in np.arange(-1, 2, 0.1):
        panel.plot(x, (worth - weight * x) / (1 - weight), color="0.85", linewidth=0.8, zorder=0)
    panel.set_xlim(left, end)
    panel.set_ylim(bottom, top)
    panel.set_title(
        f"Means of {days} days. Large: the country, with the planner's reward; small: states under the learned\n"
        "policy (they count the subsidies that they get, the country pays). Lines: equal reward, steps of 0.1.",
        loc="left",
        fontsize=7.5,
        color="0.3",
    )
    panel.set_xlabel("health index (0: always open, 1: always closed)")
    panel.set_ylabel("economic index (0: always closed, 1: always open)")
    return figure


Past: TypeAlias = Mapping[str, Any]
"""Group -> its state, whose fields are arrays of all days until now: [days, 51] for the governors."""


def draw_episode(axes: Axes, tables: Tables) -> Callable[[Past], None]:
    """Draw what all moments of an episode share: a map with a tile for each state, and panels for three quantities of the country.

    Return `show(past)`, which draws a moment: the levels of the day, and the quantities until then.
    """
    figure, country = axes.figure, tables.actors[POPULATION, PLANNER]
    full_subsidy = 1e-9 * float(tables.actors[FULL_SUBSIDY_DAY, PLANNER])
    grid = figure.add_gridspec(3, 2, width_ratios=(1.5, 1))
    axes.set_subplotspec(grid[:, 0])
    tiles = [Rectangle((x - 0.46, y - 0.46), 0.92, 0.92) for x, y in places()]
    levels = axes.add_collection(PatchCollection(tiles, cmap=SHADES, norm=colors.BoundaryNorm(np.arange(0.5, 11), SHADES.N)))
    for (x, y), code in zip(places(), CODES.split(), strict=True):
        axes.text(x, y, code, ha="center", va="center", fontsize=8)
    axes.set(xlim=(-0.6, 11.6), ylim=(6.6, -0.6), aspect="equal")
    axes.set_title("stringency level", loc="left", fontsize=10)
    axes.axis("off")
    figure.colorbar(levels, ax=axes, location="bottom", ticks=range(1, 11), aspect=40, pad=0.02)
    panels = [figure.add_subplot(grid[row, 1]) for row in range(3)]
    for panel, title, limit in zip(panels, TITLES[1:], ((1e3, 5e6), (0.0, 25.0), (0.0, 1.05 * full_subsidy)), strict=True):
        panel.set_title(title, loc="left", fontsize=10)
        panel.set(xlim=(0, len(tables.calendar) - 1), ylim=limit)
        panel.grid(alpha=0.2)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yscale("log")
    panels[0].yaxis.set_major_formatter(lambda deaths, _: f"{deaths:,.0f}")
    for panel in panels[:2]:
        panel.tick_params(labelbottom=False)
    panels[2].set_xlabel("day", fontsize=9)
    style = {"color": COLORS["learned"], "linewidth": 2, "markersize": 5, "clip_on": False}
    lines = [panel.plot((), (), "o-", **style)[0] for panel in panels]
    figure.text(0.99, 0.01, SMALL_PRINT, ha="right", fontsize=6, color="0.4")
    figure.set_size_inches(8, 4.2)

    def show(past: Past) -> None:
        governors = past["governors"]
        levels.set_array(governors.level[-1])
        unemployed = 100.0 * governors.unemployed.sum(1, dtype=float) / country
        subsidies = past["planner"].subsidy / SUBSIDY_LEVELS * full_subsidy
        for line, values in zip(lines, (governors.dead.sum(1, dtype=float), unemployed, subsidies), strict=True):
            line.set_data(np.arange(len(values)), values)
            line.set_markevery([len(values) - 1])

    return show


def places() -> list[tuple[int, int]]:
    """Return the column and the row of the tile of each state."""
    found = {code: (x, y) for y, row in enumerate(TILES.strip().splitlines()) for x, code in enumerate(row.split())}
    return [found[code] for code in CODES.split()]


def calendar(start: int, count: int) -> list[date]:
    """Return the dates of `count` days."""
    return [FIRST_DAY + timedelta(start + t) for t in range(count)]


def months(panel: Axes, every: int) -> None:
    """Label the horizontal axis once per `every` months."""
    panel.xaxis.set_major_locator(dates.MonthLocator(interval=every))
    panel.xaxis.set_major_formatter(dates.DateFormatter("%b %Y"))
