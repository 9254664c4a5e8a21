"""Draw films of docs/gallery.md anew, all at one size with titles, and put them beside each other: docs/figures/films.gif.

    python scripts/montage.py [--films TITLE ...]

A film is that of the section with this title, made by the commands there. A run that outputs/films has is not trained again.
Needs matplotlib.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
from common import DOCS, ROOT, require, settings

from warprun.cli.settings import read_settings
from warprun.cli.trained import PlaySettings
from warprun.playing.drawing import Drawing
from warprun.playing.episodes import episodes_of
from warprun.playing.films import gif
from warprun.run_folder import LINES
from warprun.runs.build import set_up
from warprun.runs.opening import load_checkpoint, open_run, trained_agent
from warprun.state import derived_seed

FILMS = ["CartPole", "Pendulum", "Tag in the plane", "Catalysis", "Gray-Scott reaction", "Kuramoto-Sivashinsky equation"]
COLUMNS, TILE, GAP = 3, (272, 220), 6
"""Films of a row, and pixels: a row is as wide as a page of GitHub, which would blur a wider one."""
FPS, FRAMES, DPI = 10.0, 60, 80
"""Every film begins again at its end."""


def main() -> None:
    """Write the film."""
    require("matplotlib", "matplotlib")
    chosen = settings(__doc__, films=FILMS)
    films = [frames(title) for title in chosen.films]
    with gif(DOCS / "figures" / "films.gif", FPS) as show:
        for at in range(FRAMES):
            tiles = [film[at % len(film)] for film in films]
            tiles += [np.full_like(tiles[0], 255)] * (-len(tiles) % COLUMNS)
            spaced = [np.pad(tile, ((0, GAP), (0, GAP), (0, 0)), constant_values=255) for tile in tiles]
            rows = [np.hstack(spaced[first : first + COLUMNS]) for first in range(0, len(spaced), COLUMNS)]
            show(np.vstack(rows)[:-GAP, :-GAP])
    print(DOCS / "figures" / "films.gif")


def frames(title: str) -> list[np.ndarray]:
    """Return the tiles [height, width, 3] of a film at `FPS`; train its policy if there is no run."""
    section = (DOCS / "gallery.md").read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    ((train, play),) = re.findall(r"^warprun (.*)\nwarprun (play latest .*)$", section, re.MULTILINE)
    folder = ROOT / "outputs" / "films" / title.lower().replace(" ", "_")
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "warprun", *train.split(), f"run_dir={folder}"], check=True)
    given = PlaySettings()
    read_settings("play", given, play.split()[1:])
    opened = open_run(folder, "cpu", False, given.episodes)
    setup = set_up(opened.config)
    tile = SimpleNamespace(draw=titled(vars(opened.module)["draw"], title), __file__=opened.module.__file__)
    drawing = Drawing(tile, setup.environment, setup.tables, title)
    agent = trained_agent(setup, load_checkpoint(opened, LINES[given.checkpoint]))
    episodes = episodes_of(setup, agent, derived_seed(given.seed, "eval"), given.episodes, given.greedy)
    drawn = []
    for episode in range(given.episodes):
        for moment in episodes.moments(episode):
            drawing.follow(moment)
            if moment.step % given.every == 0 or moment.taken is None:
                drawn.append(drawing.frame(moment, ""))
    episodes.close()
    return [drawn[int(at)] for at in np.arange(0.0, len(drawn), given.fps / FPS)]


def titled(draw: Callable[..., Any], title: str) -> Callable[..., Any]:
    """Return `draw` for a tile: its first panel under a title, in a frame, without what would be too small to read."""

    @wraps(draw)
    def tile(**given: Any) -> Any:
        returned, axes = draw(**given), given["axes"]
        figure = axes.figure
        for other in [*figure.axes[1:], *figure.legends, *filter(None, [axes.get_legend()])]:
            other.remove()
        axes.set_subplotspec(figure.add_gridspec(1, 1)[0])
        axes.set(xticks=(), yticks=(), xlabel="", ylabel="")
        axes.spines[:].set(visible=True, color="0.8")
        figure.set_dpi(DPI)
        figure.set_size_inches(TILE[0] / DPI, TILE[1] / DPI)
        figure.suptitle(title, fontsize=12, weight="bold")
        figure.supxlabel("")  # the place of the caption
        return returned

    return tile


if __name__ == "__main__":
    main()
