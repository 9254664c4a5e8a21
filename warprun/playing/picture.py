"""A matplotlib figure as pixels, of which only what moves is drawn again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

SIZE, DPI = (6.0, 4.5), 80
"""Inches of a figure, which `draw` may change, and pixels per inch."""
CAPTION, GRAY = 11, (89, 89, 89)
"""Pixels of the letters of the caption, and their color."""


class Picture:
    """A figure with axes, and a line of text below them.

    What has changed from one frame to another is drawn, with all that covers it, over a copy of the rest.
    """

    def __init__(self) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.font_manager import findfont
        from PIL import ImageFont

        self._figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
        self._canvas = FigureCanvasAgg(self._figure)
        self._figure.supxlabel(" ", fontsize=72 * CAPTION / DPI)  # the place of the caption
        self._font = ImageFont.truetype(findfont("DejaVu Sans"), CAPTION, layout_engine=ImageFont.Layout.BASIC)
        self.axes = self._figure.add_subplot()
        self._still: Any = None
        """The pixels of what has not changed since the first frame."""

    def pixels(self, caption: str) -> np.ndarray:
        """Return the figure as it is now, [height, width, 3] uint8, with a caption."""
        from PIL import Image, ImageDraw

        if self._figure.stale:  # what moves does not count
            self._draw_still()
        else:
            self._canvas.restore_region(self._still)
        for drawn in self._drawn():
            for artist in drawn:
                if artist.get_animated():
                    self._figure.draw_artist(artist)
        picture = Image.fromarray(np.ascontiguousarray(np.asarray(self._canvas.buffer_rgba())[..., :3]))
        # By Pillow, which takes a tenth of the time of matplotlib for a text that always changes.
        ImageDraw.Draw(picture).text((0.01 * picture.width, picture.height - 5), caption, GRAY, self._font, "ls")
        return np.array(picture)

    def _draw_still(self) -> None:
        """Draw all but what has changed since the first frame. The first one lays out the axes."""
        if self._still is not None:
            for drawn in self._drawn():
                first = next((n for n, artist in enumerate(drawn) if artist.stale), len(drawn))
                for artist in drawn[first:]:  # what covers something that moves is drawn again with it
                    artist.set_animated(True)
        self._canvas.draw()
        self._figure.set_layout_engine("none")
        self._still = self._canvas.copy_from_bbox(self._figure.bbox)

    def _drawn(self) -> Iterator[list[Any]]:
        """Yield what was drawn into each axes, and their edges, from bottom to top."""
        for axes in self._figure.axes:
            edges = axes.spines.values() if axes.axison else ()
            own = {*axes.lines, *axes.patches, *axes.collections, *axes.images, *axes.texts, *edges}
            yield sorted((artist for artist in axes.get_children() if artist in own), key=lambda artist: artist.zorder)
