"""One self-contained HTML page: the table, the figures as inlined images, and what was left out. It loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px; line-height: 1.35; font-variant-numeric: tabular-nums; overflow-wrap: normal }
th, td { padding: .35rem .55rem; text-align: right; vertical-align: top; border-bottom: 1px solid #ddd; white-space: nowrap }
th { white-space: normal; vertical-align: bottom; border-bottom: 2px solid #444 }
.name { text-align: left }
small { display: block; color: #555; font-size: 12px }
figure { margin: 2.2rem 0 } figcaption { color: #444; font-size: 13px; max-width: 46rem }
img { max-width: max(100%, 36rem); height: auto; vertical-align: bottom }
"""
"""A table or a figure that is wider than the page scrolls in its own box; the text of a figure stays large enough to read."""


def page(
    title: str,
    headings: Sequence[str],
    names: int,
    rows: Sequence[Sequence[str]],
    figures: Sequence[tuple[Path, str]],
    notes: Sequence[str],
) -> str:
    """Return the page. The first `names` columns of the table are names; `figures` are SVG files with captions. Raises OSError."""
    parts = [f"<h1>{escape(title)}</h1>", _table(headings, names, rows)]
    parts += [f"<p>{escape(note)}</p>" for note in notes]
    parts += [_figure(path, caption) for path, caption in figures]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{head}<style>{STYLE}</style></head>\n<body>\n'
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _table(headings: Sequence[str], names: int, rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        named = "".join(f"<{tag} class=name>{escape(cell)}</{tag}>" for cell in cells[:names])
        return f"<tr>{named}{''.join(f'<{tag}>{_in_two_lines(cell)}</{tag}>' for cell in cells[names:])}</tr>"

    return _wide("table", f"<table>\n{line(headings, 'th')}\n" + "\n".join(line(row, "td") for row in rows) + "\n</table>")


def _in_two_lines(cell: str) -> str:
    """Return a number with its interval below it."""
    value, bracket, rest = cell.partition(" [")
    return escape(value) + (f"<small>[{escape(rest)}</small>" if bracket else "")


def _figure(path: Path, caption: str) -> str:
    source = f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"
    image = f'<img alt="{escape(alternative(caption))}" src="{source}">'
    return f"<figure>{_wide(path.stem, image)}<figcaption>{escape(caption)}</figcaption></figure>"


def _wide(name: str, content: str) -> str:
    """Return content in a box that scrolls, by keys too, where it is wider than the page."""
    return f'<div class="wide" role="region" aria-label="{escape(name)}" tabindex="0">{content}</div>'


def alternative(caption: str) -> str:
    """Return what is said instead of a figure: the first sentence of its caption."""
    return caption.partition(". ")[0].removesuffix(".")
