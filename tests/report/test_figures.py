"""What the figures of a report say on their axes: read from matplotlib's own boxes, without a browser."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tests.report.made import made
from warprun.report.report import Asked, report

SEEDS = 3
SPACE = 4
"""Pixels of 1/100 inch between two words."""


def make(kinds: Iterable[tuple[dict[str, object], list[float]]], noise: float = 0.0, every: int = 20_000) -> None:
    """Make runs of each kind, a setting and its curve, that differ by `noise`."""
    for n, (settings, curve) in enumerate(kinds):
        for seed in range(SEEDS):
            returns = [value + noise * (seed - 1) for value in curve]
            made(Path("runs", f"{n}_{seed}"), returns, settings=settings | {"seed": seed}, every=every)


def _agents(*curves: list[float]) -> list[tuple[dict[str, object], list[float]]]:
    return [({"agent.name": agent}, curve) for agent, curve in zip(("a2c", "ppo", "dqn"), curves, strict=False)]


def _sizes(*sizes: int) -> list[tuple[dict[str, object], list[float]]]:
    return [({"n_envs": size}, [20.0, 480.0, 500.0]) for size in sizes]


RISING = np.linspace(20.0, 500.0, 12).tolist()
LONG = [
    ({"agent.name": agent, "agent.learning_rate": rate, "n_envs": size, "total_steps": size * 10_000}, RISING)
    for agent in ("a2c", "ppo")
    for rate in (0.0003, 0.00123)
    for size in (100, 1024)
]
GRID = [
    ({"agent.clip": clip, "agent.learning_rate": rate}, [20.0, 480.0 - 1000 * rate + 100 * clip])
    for clip in (0.05, 0.1, 0.4)
    for rate in (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
]
CASES: dict[str, tuple[Callable[[], None], bool]] = {
    "nearly equal": (lambda: make(_agents([499.98] * 4, [499.99] * 4), noise=1e-3), False),
    "equal but for rounding": (lambda: make(_agents([499.98] * 4, [499.98] * 4), noise=1e-13), False),
    "different": (lambda: make(_agents(RISING, [20.0, 30.0, 150.0]), noise=9.0, every=212_992), False),
    "long names": (lambda: make(LONG, noise=5.0), False),
    "many": (lambda: make([({"agent.clip": 0.01 * n}, RISING) for n in range(1, 13)], noise=2.0), False),
    "grid": (lambda: make(GRID, noise=2.0), False),
    "sizes": (lambda: make(_sizes(10, 100, 1000, 1024, 10_000)), True),
    "large": (lambda: make(_agents([-3.2e6, -2e6, -1.1e6], [-3.2e6, -1e6, -9e5]), noise=1e4), False),
    "small": (lambda: make(_agents([1e-4, 2e-4], [1e-4, 3e-4]), noise=1e-5), False),
    "single evaluation": (lambda: make(_agents([3.0], [4.0])), False),
    "several environments": (lambda: make(_agents(RISING, RISING) + [({"env.name": "acrobot"}, [-500.0, -80.0])], noise=1.0), False),
}


def _shown(folder: Path, case: str, monkeypatch: pytest.MonkeyPatch, look: Callable[[str, Figure], None]) -> None:
    """Report the runs of a case; look at every figure when it is written."""
    monkeypatch.chdir(folder)
    make, log_x = CASES[case]
    make()

    def savefig(figure: Figure, file: Any, *, format: str, **keywords: object) -> None:
        if format == "svg":
            look(Path(file.name).name.partition(".")[0], figure)

    monkeypatch.setattr(Figure, "savefig", savefig)
    report([Path("runs")], Asked(log_x=log_x))


def _texts(figure: Figure) -> Iterator[Text]:
    """Yield the texts that a reader sees."""
    for panel in figure.axes:
        yield from (panel.title, panel._left_title, panel.xaxis.label, panel.yaxis.label)
        for axis, limits in ((panel.xaxis, panel.get_xlim()), (panel.yaxis, panel.get_ylim())):
            if axis.get_tick_params()["labelleft" if axis is panel.yaxis else "labelbottom"]:
                inside = (tick for tick in axis.get_major_ticks() if min(limits) <= tick.get_loc() <= max(limits))
                yield from (tick.label1 for tick in inside)
    for legend in figure.legends:
        yield from legend.get_texts()


def _in_one_line(one: Bbox, other: Bbox) -> bool:
    return min(one.y1, other.y1) - max(one.y0, other.y0) > 0.5 * min(one.height, other.height)


def lines_are_in_their_bands(name: str, figure: Figure) -> None:
    for panel in figure.axes:
        bands = [band.get_paths() for band in panel.collections]
        lines = [line for line in panel.lines if len(line.get_xdata()) > 2]
        assert len(bands) >= len(lines)
        for line, paths in zip(lines, bands, strict=False):
            corners = np.concatenate([path.vertices for path in paths])
            x, y = line.get_xdata(), line.get_ydata()
            assert corners[:, 0].min() == x[0] and corners[:, 0].max() == x[-1]
            for place, value in zip(x[1:-1], y[1:-1], strict=True):
                here = corners[corners[:, 0] == place, 1]
                rounding = 1e-12 * abs(value)  # of a weighted mean
                assert here.min() - rounding <= value <= here.max() + rounding, f"{name}: at {place}"


def equal_returns_look_equal(name: str, figure: Figure) -> None:
    """On paper, two agents that end at 500 but for noise are at the same place: within a hundredth of the panel's width."""
    if name == "scores":
        for panel in figure.axes[:2]:
            places = [line.get_transform().transform(line.get_xydata())[:, 0] for line in panel.lines]
            assert np.ptp(np.concatenate(places)) < 0.01 * panel.bbox.width
    if name == "profiles":
        (panel,) = figure.axes
        ends = [line.get_xdata()[np.argmin(line.get_ydata())] for line in panel.lines]
        assert np.ptp(ends) < 0.01 * np.ptp(panel.get_xlim())


def profiles_end_at_the_largest_return(name: str, figure: Figure) -> None:
    """No return can be shown to lie beyond the largest one that there is."""
    if name == "profiles":
        for panel in figure.axes:
            largest = max(line.get_xdata()[np.argmin(line.get_ydata())] for line in panel.lines)
            assert panel.get_xlim()[1] == largest == max(line.get_xdata().max() for line in panel.lines)


@pytest.mark.parametrize("case", CASES)
def test_figures_can_be_read_and_say_what_is_true(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts do not overlap, axes have no offset, lines are in their bands, and equal returns look equal."""
    names: list[str] = []

    def look(name: str, figure: Figure) -> None:
        names.append(name)
        if name in ("learning", "profiles"):
            lines_are_in_their_bands(name, figure)
        profiles_end_at_the_largest_return(name, figure)
        if "equal" in case:
            equal_returns_look_equal(name, figure)
        figure.canvas.draw()
        boxes = [(text.get_text(), text.get_window_extent()) for text in _texts(figure) if text.get_text()]
        for (one, box), (other, beside) in itertools.combinations(boxes, 2):
            apart = beside.x0 - box.x1 if beside.x0 > box.x0 else box.x0 - beside.x1
            assert not box.overlaps(beside) and (apart > SPACE or not _in_one_line(box, beside)), f"{name}: {one!r} and {other!r}"
        for text, box in boxes:
            inside = min(box.x0, box.y0) >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
            assert inside, f"{name}: {text!r} leaves the page"
        for panel in figure.axes:
            assert not panel.xaxis.get_offset_text().get_text() and not panel.yaxis.get_offset_text().get_text(), name
            place = panel.get_subplotspec()
            if place is None:  # a scale of colours
                continue
            assert panel.bbox.width * place.get_gridspec().ncols > 0.4 * figure.bbox.width, f"{name}: no place for a panel"
            for axis in (panel.xaxis, panel.yaxis):
                low, high = sorted(axis.get_view_interval())
                labels = [tick.label1.get_text() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
                assert len(set(labels)) == len(labels), f"{name}: {labels}"
                assert len(labels) > 1 or name in ("scores", "improvement"), f"{name}: {labels} give no scale"

    _shown(tmp_path, case, monkeypatch, look)
    assert {"learning", "scores", "profiles"} <= set(names)
