"""Films as GIF, MP4 or HTML files. Frames are written as they come, so long films take no memory."""

from __future__ import annotations

import base64
import io
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np

from warprun.errors import UserError, one_line
from warprun.files import atomic

AddFrame: TypeAlias = Callable[[np.ndarray], None]
"""add(frame) takes a frame [height, width, 3] uint8; all frames of a film have the same shape."""
COLORS = 255
"""Colours of a frame of a GIF, which has one more that is transparent."""


@contextmanager
def gif(path: Path, fps: float) -> Iterator[AddFrame]:
    """Write an animated GIF that repeats for ever. Its times are in hundredths of a second, at least two of them for a frame.

    A frame holds only the rectangle that differs from the frame before, in which pixels that do not differ are transparent. Raises OSError.
    """
    from PIL import GifImagePlugin, Image

    timing = {"duration": 10 * max(2, round(100 / fps))}
    before: list[np.ndarray] = []
    with atomic(path) as file:

        def add(frame: np.ndarray) -> None:
            changed = (frame != before[0]).any(-1) if before else np.ones(frame.shape[:2], bool)
            if not changed.any():
                changed[0, 0] = True  # a frame that shows nothing new still takes its time
            rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
            box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
            part = Image.fromarray(frame[box]).quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            palette = part.getpalette() or []
            transparent = len(palette) // 3
            shown = Image.fromarray(np.where(changed[box], np.asarray(part), np.uint8(transparent)))
            shown.putpalette([*palette, 0, 0, 0])
            if not before:
                file.writelines(GifImagePlugin.getheader(shown.copy(), info={"loop": 0})[0])
            place = int(columns[0]), int(rows[0])
            file.writelines(GifImagePlugin.getdata(shown, place, include_color_table=True, transparency=transparent, disposal=1, **timing))
            before[:] = [frame.copy()]

        yield add
        file.write(b";")


@contextmanager
def mp4(path: Path, fps: float) -> Iterator[AddFrame]:
    """Write an MP4 (H.264) through ffmpeg. A frame of odd width or height loses a row or a column. Raises UserError and OSError."""
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="warprun-") as folder, tempfile.TemporaryFile() as complaint, atomic(path) as file:
        made = Path(folder, "film.mp4")

        def add(frame: np.ndarray) -> None:
            frame = frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]
            if not running:
                size = f"{frame.shape[1]}x{frame.shape[0]}"
                given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", f"{fps:g}", "-i", "-"]
                wanted = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(made)]
                command = [find_ffmpeg(), "-loglevel", "error", "-nostdin", *given, *wanted]
                running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=complaint))
            with suppress(BrokenPipeError):  # it has ended, and its exit code says why
                _pipe(running[0]).write(np.ascontiguousarray(frame).tobytes())

        try:
            yield add
            for process in running:
                with suppress(BrokenPipeError):
                    _pipe(process).close()
                if process.wait():
                    complaint.seek(0)
                    said = complaint.read().decode(errors="replace").strip().splitlines()
                    raise UserError(f"ffmpeg cannot write {path}: {said[-1] if said else f'exit code {process.returncode}'}")
            with made.open("rb") as film:
                shutil.copyfileobj(film, file)
        finally:
            for process in running:
                process.kill()  # no effect if it has ended
                process.wait()


def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin
    return process.stdin


def find_ffmpeg() -> str:
    """Return the path of ffmpeg: that of the system, or of the package imageio-ffmpeg. Raises UserError."""
    found = shutil.which("ffmpeg")
    if found:
        return found
    if find_spec("imageio_ffmpeg") is None:
        raise UserError('.mp4 needs ffmpeg; install it, or run: pip install "warprun[mp4]" (.gif and .html need no ffmpeg)')
    import imageio_ffmpeg

    try:
        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError as error:
        raise UserError(f".mp4 needs ffmpeg, and imageio-ffmpeg has none: {one_line(error)}") from None


@contextmanager
def html(path: Path, fps: float) -> Iterator[AddFrame]:
    """Write a page that shows the frames with a slider. It has no links: it works without a network. Raises OSError."""
    from PIL import Image

    with atomic(path) as file:
        file.write(PAGE_BEGIN.encode())

        def add(frame: np.ndarray) -> None:
            picture = io.BytesIO()
            Image.fromarray(frame).save(picture, "PNG")
            file.write(b'"' + base64.b64encode(picture.getvalue()) + b'",\n')

        yield add
        file.write(PAGE_END.replace("FPS", f"{fps:g}").encode())


# Matplotlib's to_jshtml is not used: its page loads a style sheet from a server.
PAGE_BEGIN = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>warprun play</title>
<style>
  body { margin: 1em auto; max-width: 60em; font: 14px system-ui, sans-serif; text-align: center; color: #333; }
  img { max-width: 100%; display: block; margin: 0 auto 0.5em; }
  #bar { display: flex; gap: 0.7em; align-items: center; max-width: 40em; margin: auto; }
  #place { flex: 1; }
  button { width: 5em; }
</style>
<img id="view" alt="frame">
<div id="bar">
  <button id="play">pause</button>
  <input id="place" type="range" min="0" value="0">
  <span id="count"></span>
  <select id="speed">
    <option value="0.25">&frac14;&times;</option><option value="0.5">&frac12;&times;</option>
    <option value="1" selected>1&times;</option><option value="2">2&times;</option><option value="4">4&times;</option>
  </select>
</div>
<script>
const frames = [
"""
PAGE_END = """];
const [view, play, place, count, speed] = ["view", "play", "place", "count", "speed"].map(id => document.getElementById(id));
let shown = 0, playing = true, last = performance.now();
place.max = frames.length - 1;
function show(n) {
  shown = Math.max(0, Math.min(frames.length - 1, n));
  view.src = "data:image/png;base64," + frames[Math.floor(shown)];
  place.value = Math.floor(shown);
  count.textContent = `${Math.floor(shown) + 1} / ${frames.length}`;
}
function set(on) { playing = on; play.textContent = on ? "pause" : "play"; last = performance.now(); }
play.onclick = () => { if (!playing && shown >= frames.length - 1) show(0); set(!playing); };
place.oninput = () => { set(false); show(Number(place.value)); };
document.onkeydown = event => {
  if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    set(false); show(Math.floor(shown) + (event.key === "ArrowRight" ? 1 : -1)); event.preventDefault();
  }
};
function tick(now) {
  if (playing) {
    const next = shown + (now - last) / 1000 * FPS * Number(speed.value);
    if (next >= frames.length) { show(frames.length - 1); set(false); }
    else if (Math.floor(next) !== Math.floor(shown)) show(next); else shown = next;
  }
  last = now;
  requestAnimationFrame(tick);
}
show(0);
requestAnimationFrame(tick);
</script>
</html>
"""
