"""Put films of docs/gallery.md beside each other, in one film that plays them at the same time: docs/figures/films.gif.

    python scripts/montage.py [--films NAME ...]

Needs Pillow, which comes with matplotlib.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from common import DOCS, require, settings

FIGURES = DOCS / "figures"
FILMS = ["cartpole", "acrobot", "pendulum", "tag_continuous", "covid", "catalysis", "gray_scott", "kuramoto_sivashinsky"]
COLUMNS, TILE, GAP = 4, (200, 150), 6
"""Films of a row, and pixels."""
FRAME_MS, FRAMES, COLORS = 100, 60, 96
"""Every film begins again at its end."""


def main() -> None:
    """Write the film."""
    require("PIL", "matplotlib")
    from PIL import Image, ImageSequence

    chosen = settings(__doc__, films=FILMS)
    rows = -(-len(chosen.films) // COLUMNS)
    size = COLUMNS * TILE[0] + (COLUMNS - 1) * GAP, rows * TILE[1] + (rows - 1) * GAP
    pages = [Image.new("RGB", size, "white") for _ in range(FRAMES)]
    for number, name in enumerate(chosen.films):
        with Image.open(FIGURES / f"film_{name}.gif") as film:
            shown = [(frame.info["duration"], frame.convert("RGB").resize(fitted(frame.size))) for frame in ImageSequence.Iterator(film)]
        ends = list(accumulate(duration for duration, _ in shown))
        for at, page in enumerate(pages):
            tile = shown[int(np.searchsorted(ends, at * FRAME_MS % ends[-1], side="right"))][1]
            left, top = number % COLUMNS * (TILE[0] + GAP), number // COLUMNS * (TILE[1] + GAP)
            page.paste(tile, (left + (TILE[0] - tile.width) // 2, top + (TILE[1] - tile.height) // 2))
    palette = pages[FRAMES // 2].quantize(COLORS)
    first, *others = [page.quantize(palette=palette, dither=Image.Dither.NONE) for page in pages]
    first.save(FIGURES / "films.gif", save_all=True, append_images=others, duration=FRAME_MS, loop=0, optimize=True)
    print(FIGURES / "films.gif")


def fitted(size: tuple[int, int]) -> tuple[int, int]:
    """Return the largest size of the same shape within a tile."""
    scale = min(TILE[0] / size[0], TILE[1] / size[1])
    return max(1, round(scale * size[0])), max(1, round(scale * size[1]))


if __name__ == "__main__":
    main()
