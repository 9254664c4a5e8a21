"""The figures of a covid run: policies over time, states over time, health against economy. Needs matplotlib."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from warprun.envs.covid.data import load
from warprun.envs.covid.tables import FIRST_DAY, PLANNER, STATES

matplotlib.use("agg")
from matplotlib import dates, pyplot

COLORS = {"learned": "#0072b2", "always open": "#e69f00", "always closed": "#009e73", "historical": "#444444"}
MARKS = {"learned": "o", "always open": "^", "always closed": "s", "historical": "D"}
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
SMALL_PRINT = "Model: Trott et al. 2021, a proof of concept, not for real policy making."


def draw(folder: Path, courses: Mapping[str, Any], start: int) -> None:
    """Write three PNG files."""
    with pyplot.rc_context(STYLE):
        for name, figure in (
            ("policies_over_time", policies_over_time(courses, start)),
            ("states_over_time", states_over_time(courses["learned"], start)),
            ("health_economy", health_economy(courses)),
        ):
            figure.supxlabel(SMALL_PRINT, x=0.99, ha="right", fontsize=6, color="0.4")
            figure.savefig(folder / f"{name}.png", dpi=150)
            pyplot.close(figure)


def policies_over_time(courses: Mapping[str, Any], start: int) -> Any:
    """Draw stringency, deaths, unemployment and subsidies of the country, a line for each policy."""
    figure, panels = pyplot.subplots(2, 2, figsize=(9, 5.6), sharex=True, layout="constrained")
    people = load().population / load().population.sum()
    for name, shown in courses.items():
        days = calendar(start, len(shown.level))
        lines = (shown.level @ people, shown.dead[:, PLANNER] / 1e6, shown.unemployed[:, PLANNER], shown.subsidy[:, PLANNER] / 1e9)
        for panel, line in zip(panels.flat, lines, strict=True):
            panel.plot(days, line, color=COLORS[name], label=name, linewidth=2 if name == "learned" else 1.3)
        if name == "learned":
            low, high = np.quantile(shown.level, (0.1, 0.9), axis=1)
            panels[0, 0].fill_between(days, low, high, color=COLORS[name], alpha=0.15, linewidth=0, label="learned, 80 % of states")
    titles = ("stringency level, mean over people", "deaths, millions", "unemployed, % of the people", "subsidies, billion USD a day")
    for panel, title in zip(panels.flat, titles, strict=True):
        panel.set_title(title, loc="left", fontsize=9)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.2)
        months(panel, every=4)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return figure


def states_over_time(shown: Any, start: int) -> Any:
    """Draw the learned policy state by state: level, deaths and unemployment."""
    people = load().population
    values = (
        ("stringency level", shown.level, "viridis", (1, 10)),
        ("deaths per 100,000", 1e5 * shown.dead[:, :STATES] / people, "magma_r", (0, None)),
        ("unemployed, % of the people", shown.unemployed[:, :STATES], "cividis", (0, None)),
    )
    figure, panels = pyplot.subplots(1, 3, figsize=(11, 7.2), sharey=True, layout="constrained")
    days = dates.date2num(calendar(start, len(shown.level)))
    for panel, (title, field, colors, (low, high)) in zip(panels, values, strict=True):
        extent = (days[0], days[-1], STATES - 0.5, -0.5)
        image = panel.imshow(field.T, aspect="auto", interpolation="nearest", cmap=colors, vmin=low, vmax=high, extent=extent)
        panel.xaxis_date()
        months(panel, every=6)
        panel.set_title(title, loc="left", fontsize=9)
        figure.colorbar(image, ax=panel, location="bottom", shrink=0.8)
    panels[0].set_yticks(range(STATES), [str(name) for name in load().states], fontsize=6)
    return figure


def health_economy(courses: Mapping[str, Any]) -> Any:
    """Draw the country's mean indices of every policy, and those of every state under the learned one."""
    days = min(len(shown.health) for shown in courses.values())
    figure, panel = pyplot.subplots(figsize=(5.4, 4.6), layout="constrained")
    means = {name: (shown.health[:days].mean(0), shown.economy[:days].mean(0)) for name, shown in courses.items()}
    panel.scatter(
        *(m[:STATES] for m in means["learned"]),
        s=9,
        color=COLORS["learned"],
        alpha=0.35,
        linewidth=0,
        label="learned, each state (keeps its subsidies)",
    )
    for name, (health, economy) in means.items():
        panel.scatter(
            health[PLANNER],
            economy[PLANNER],
            s=70,
            color=COLORS[name],
            marker=MARKS[name],
            edgecolor="white",
            label=name,
            zorder=4 if name == "learned" else 3,
        )
    panel.set_xlabel(f"health index, mean of {days} days (0 and 1: the fitted bounds)")
    panel.set_ylabel("economic index")
    panel.grid(alpha=0.2)
    panel.legend(loc="best")
    return figure


def calendar(start: int, count: int) -> list[Any]:
    """Return the dates of `count` days."""
    return [FIRST_DAY + timedelta(start + t) for t in range(count)]


def months(panel: Any, every: int) -> None:
    """Label every so many months of the horizontal axis."""
    panel.xaxis.set_major_locator(dates.MonthLocator(interval=every))
    panel.xaxis.set_major_formatter(dates.DateFormatter("%b %Y"))
