"""Reports of many runs: the settings that are shown, and what their figures say."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.report.made import made
from warprun.cli import main as cli
from warprun.report import population
from warprun.report.compare import Comparison, compare
from warprun.report.runs import collect
from warprun.report.style import drawing
from warprun.report.table import Line, lines

RATES, CLIPS = (1e-4, 1e-3, 1e-2, 1e-1), (0.1, 0.2, 0.3)


def _value(rate: float, clip: float) -> float:
    return 480.0 - 100.0 * abs(RATES.index(rate) - 2) - 30.0 * abs(CLIPS.index(clip) - 1)


def _compared(folder: Path) -> tuple[Comparison, list[Line]]:
    comparison = compare(collect([folder], False)[0], None, None, None)
    return comparison, lines(comparison)


def _grid(folder: Path, rates: tuple[float, ...] = RATES, clips: tuple[float, ...] = CLIPS, seeds: int = 2) -> None:
    for n, (rate, clip, seed) in enumerate((rate, clip, seed) for rate in rates for clip in clips for seed in range(seeds)):
        ends = _value(rate, clip) + seed
        made(folder / f"{n:04}", [20.0, ends], settings={"agent.learning_rate": rate, "agent.clip": clip, "seed": seed})


def _shown(figure: Figure | None) -> Figure:
    assert figure is not None
    figure.draw_without_rendering()
    return figure


def test_a_cell_of_a_heat_map_has_the_value_of_its_setting(tmp_path: Path) -> None:
    _grid(tmp_path)
    with drawing():
        figure = _shown(population.heatmap(*_compared(tmp_path)))
    returns, steps = [panel for panel in figure.axes if panel.images]
    across, up = (CLIPS, RATES) if returns.get_xlabel() == "clip" else (RATES, CLIPS)
    cells = returns.images[0].get_array()
    for x, first in enumerate(across):
        for y, second in enumerate(up):
            rate, clip = (second, first) if across is CLIPS else (first, second)
            assert cells[y, x] == pytest.approx(_value(rate, clip) + 0.5)
    assert "best: 480\nat" in returns.get_title("left") and "learning_rate=0.01" in returns.get_title("left")
    assert "clip=0.2" in returns.get_title("left")
    assert [label.get_text() for label in (returns.yaxis if up is RATES else returns.xaxis).get_ticklabels()] == [
        "0.0001",
        "0.001",
        "0.01",
        "0.1",
    ]
    assert np.ma.count(steps.images[0].get_array()) == 1 and "grey: not reached" in [panel.get_ylabel() for panel in figure.axes]
    written = {text.get_text() for text in returns.texts}
    assert {"480", "450", "380"} <= written


def test_settings_without_an_order_have_no_heat_map_and_scattered_ones_are_dots(tmp_path: Path) -> None:
    _grid(tmp_path / "pairs", RATES[:2], CLIPS, 1)
    assert population.heatmap(*_compared(tmp_path / "pairs")) is None  # two rates are a choice
    for n in range(12):
        made(
            tmp_path / "dots" / f"{n}",
            [20.0, 100.0 + n],
            settings={"agent.learning_rate": 1e-4 * 1.7**n, "agent.clip": 0.01 * (n * 5 % 12 + 1)},
        )
    figure = _shown(population.heatmap(*_compared(tmp_path / "dots")))
    panel = figure.axes[0]
    assert not panel.images and len(panel.collections[1].get_offsets()) == 12
    assert {panel.get_xscale(), panel.get_yscale()} == {"log", "linear"}


def test_a_number_that_differs_has_a_curve_for_each_choice(tmp_path: Path) -> None:
    for agent, bonus in (("a2c", 0.0), ("ppo", 20.0)):
        for n, rate in enumerate(RATES):
            for seed in range(4):
                settings = {"agent.name": agent, "agent.learning_rate": rate, "seed": seed}
                made(tmp_path / f"{agent}{n}{seed}", [20.0, 300.0 + bonus + 50.0 * n + seed], settings=settings)
    comparison = compare(collect([tmp_path], False)[0], ["agent", "agent.learning_rate"], None, None)
    with drawing():
        figure = _shown(population.response(comparison, lines(comparison)))
    panel = figure.axes[0]
    assert panel.get_xscale() == "log"
    for line, bonus in zip(panel.lines, (0.0, 20.0), strict=True):
        assert line.get_xdata() == pytest.approx(RATES)
        assert line.get_ydata() == pytest.approx([301.5 + bonus + 50.0 * n for n in range(4)])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a2c", "ppo"]


def test_all_curves_are_in_one_picture_with_their_median(tmp_path: Path) -> None:
    for seed in range(60):
        made(tmp_path / f"{seed}", [20.0, 100.0 + seed, 440.0 + seed], settings={"seed": seed})
    whole = _compared(tmp_path)
    with drawing():
        (panel,) = _shown(population.members(*whole)).axes
    assert len(panel.collections[0].get_paths()) == 60
    thick = panel.lines[-2]
    assert thick.get_ydata()[-1] == pytest.approx(469.5) and thick.get_linewidth() == 2.0
    assert panel.get_title("left") == "cartpole: 60 runs, 25 of them reach 475"
    assert [text.get_text() for text in panel.texts] == ["upper quartile 484.2", "median 469.5", "lower quartile 454.8"]
    heights = [text.xy[1] for text in panel.texts]
    assert min(-np.diff(heights)) > 0.06 * np.ptp(panel.get_ylim())
    few = whole[0].settings[0].runs[:50]
    comparison = compare(few, None, None, None)
    assert population.members(comparison, lines(comparison)) is None
    for seed in range(60):
        made(tmp_path / "once" / f"{seed}", [100.0 + seed], settings={"seed": seed})
    assert population.members(*_compared(tmp_path / "once")) is None  # of one evaluation there is no curve


@pytest.mark.long
def test_of_many_settings_the_best_are_shown_and_all_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")  # a narrow table breaks names
    for n in range(40):
        curve = [20.0, 500.0, 500.0] if n == 7 else [20.0, 30.0, 500.0] if n > 34 else [20.0, 30.0, 100.0 + n]
        made(Path("runs", f"{n:02}"), curve, settings={"agent.clip": round(0.01 * (n + 1), 2)})
    assert cli.run(["report", "runs"]) == 0
    told = capsys.readouterr().out
    assert "32 of 40 settings with the highest IQM" in told
    shown = [line.split()[1] for line in told.splitlines() if line.split()[:1] == ["cartpole"]]
    assert len(shown) == 32 and shown[0] == "0.08" and shown[1] == "0.36"  # of equal returns the one that is there first
    assert "0.01" not in shown and "0.35" in shown
    assert len(list(csv.DictReader(Path("report/settings.csv").read_text().splitlines()))) == 40
    assert Path("report/response.png").exists() and not Path("report/heatmap.png").exists()
