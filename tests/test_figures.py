"""Pictures that others look at: tiles of the first film, margins of films, legends beside data and not on them."""

import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from PIL import Image

from tests.scripts import load
from warprun.envs import heat_equation, kuramoto_sivashinsky
from warprun.envs.catalysis.figures import draw_episode
from warprun.envs.catalysis.landscape import Landscape
from warprun.envs.catalysis.lattice import make_tables
from warprun.playing.drawing import Picture

ROOT = Path(__file__).parents[1]
common, montage = load("common"), load("montage")


def two_panels(axes: Any) -> None:
    """Draw two panels with everything that has no room in a tile."""
    axes.set(xlabel="below", ylabel="beside")
    axes.plot((0, 1), (0, 1), label="line")
    axes.legend()
    axes.figure.add_subplot()
    axes.figure.set_size_inches(9, 2)


def test_tiles_of_the_first_film_have_one_size_and_a_title_that_fits() -> None:
    for title in montage.FILMS:
        picture = Picture()
        montage.titled(two_panels, title)(axes=picture.axes)
        tile, figure = picture.pixels(""), picture.axes.figure
        assert tile.shape == (montage.TILE[1], montage.TILE[0], 3)
        assert figure.axes == [picture.axes]
        shown = [text for text in figure.findobj(lambda artist: hasattr(artist, "get_text")) if text.get_text() and text.get_visible()]
        assert [text.get_text() for text in shown] == [title]
        place = shown[0].get_window_extent()
        assert place.x0 >= 2 and place.x1 <= montage.TILE[0] - 2 and place.height >= 12


def test_the_first_film_is_as_wide_as_a_page_and_its_sections_have_the_commands() -> None:
    with Image.open(ROOT / "docs" / "figures" / "films.gif") as film:
        rows = -(-len(montage.FILMS) // montage.COLUMNS)
        widths = (montage.COLUMNS, rows)
        assert film.size == tuple(n * (side + montage.GAP) - montage.GAP for n, side in zip(widths, montage.TILE, strict=True))
        assert 800 <= film.size[0] <= 840
    assert (ROOT / "docs" / "figures" / "films.gif").stat().st_size < 1_500_000
    gallery = (ROOT / "docs" / "gallery.md").read_text()
    for title in montage.FILMS:
        (section,) = re.findall(rf"^## {title}$(.*?)(?=^## |\Z)", gallery, re.MULTILINE | re.DOTALL)
        assert re.search(r"^warprun \S*=", section, re.MULTILINE) and re.search(r"^warprun play latest ", section, re.MULTILINE)


@pytest.mark.parametrize(("module", "sensors", "actuators"), [(heat_equation, 7, 3), (kuramoto_sivashinsky, 8, 4)], ids=["heat", "flow"])
def test_legends_and_edges_of_a_panel_cover_no_data(module: ModuleType, sensors: int, actuators: int) -> None:
    picture = Picture()
    axes = picture.axes
    module.draw(axes)(np.zeros(sensors), np.ones(actuators))
    axes.set(title="above", xlabel="below", ylabel="beside")
    frame = picture.pixels("")
    for edge in (frame[:5], frame[-5:], frame[:, :5], frame[:, -5:]):
        assert (edge == 255).all()
    assert axes.get_legend().get_window_extent().y0 >= axes.bbox.y1
    for line in axes.lines:
        assert line.get_marker() == "None" or not line.get_clip_on()


def test_a_legend_of_a_script_stands_below_its_panels(tmp_path: Path) -> None:
    with common.figure(tmp_path / "a.png", 2, (6.0, 3.0)) as panels:
        for panel in panels:
            panel.plot((0, 1), (0, 1), label="a line with a long name")
            panel.set(xlabel="place")
    figure = panels[0].figure
    (legend,) = figure.legends
    assert legend.get_window_extent().y1 <= min(panel.get_tightbbox().y0 for panel in panels)
    assert (tmp_path / "a.png").exists()


def test_the_first_energy_of_a_path_is_on_an_axis_of_energies() -> None:
    """Not on one of rounding errors, or of a range that has nothing to do with the surface."""
    energy = np.random.default_rng(0).uniform(10.0, 400.0, (5, 4, 1))
    energy[0, 1, 0] = 10.0
    tables = make_tables(Landscape(energy, 0, 1, False, 0.0, (0, 1, 0), (3, 3, 0), 1.0, 2.0))
    picture = Picture()
    show = draw_episode(picture.axes, tables)
    show(SimpleNamespace(x=0, y=1, z=0), SimpleNamespace(x=np.array([0]), y=np.array([1]), z=np.array([0])))
    low, high = picture.axes.figure.axes[1].get_ylim()
    assert high - low > 0.01 * np.ptp(energy)
