"""One self-contained HTML page: the table, the figures as inlined images, and what was left out. It loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; display: block; overflow-x: auto }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th { white-space: normal; vertical-align: bottom; border-bottom: 2px solid #444 }
th.name, td.name { text-align: left }
figure { margin: 2.2rem 0 } figure img { max-width: 100%; height: auto } figcaption { color: #444; font-size: 13px; max-width: 46rem }
code { background: #f2f2f2; padding: 0 .25rem }
"""


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
        inner = "".join(f"<{tag}{' class=name' if n < names else ''}>{escape(cell)}</{tag}>" for n, cell in enumerate(cells))
        return f"<tr>{inner}</tr>"

    return f"<table>\n{line(headings, 'th')}\n" + "\n".join(line(row, "td") for row in rows) + "\n</table>"


def _figure(path: Path, caption: str) -> str:
    source = f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"
    return f'<figure><img alt="{escape(path.stem)}" src="{source}"><figcaption>{escape(caption)}</figcaption></figure>'
