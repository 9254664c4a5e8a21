"""`warprun report`: read runs, compare them, and write tables, figures and a page."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from warprun.errors import UserError, counted, did_you_mean, printable
from warprun.files import atomic, make_folder, write_atomic
from warprun.report import figures, population, table
from warprun.report.compare import AXES, COLUMNS, Banded, Comparison, banded, compare, csv_rows
from warprun.report.runs import LeftOut, Run, collect
from warprun.report.style import MOST_LINES, WITHOUT_DATE, drawing, finish, styles
from warprun.report.table import Line, lines
from warprun.runs.records.terminal import table_console
from warprun.runs.rundir import ENDED

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
    """Return the text in place of a figure, the first sentence of its caption."""
    return caption.partition(". ")[0].removesuffix(".")


DPI = 200
MOST_NAMED = 5
"""Most folders of left-out runs that the terminal names; the page names all."""
HEADER = ("grid", "iqm", "low", "high")


@dataclass
class Asked:
    """The settings of `warprun report`, as they are typed."""

    by: str = ""
    """Settings to compare, with commas between them; empty: those that differ between the runs."""
    threshold: float = math.nan
    """The return to reach; NaN: env.solved_at."""
    returns: str = "auto"
    """eval, train or auto: evaluations if all runs have some."""
    unfinished: bool = False
    """Also use runs that have not reached their end."""
    log_x: bool = False
    tensorboard: bool = False
    """Also write the event files of runs that have none."""
    columns: str = ""
    """Columns of the table, with commas between them: names of COLUMNS, and metrics; empty: all of the former."""
    into: str = ""
    """PAGE.md:MARK: a page that shows the table, too, from <!-- MARK --> to <!-- end -->."""
    out: str = "report"


def names(given: str) -> tuple[str, ...]:
    """Return the names in a list with commas, each once."""
    return tuple(dict.fromkeys(filter(None, given.strip("[]").replace(" ", "").split(","))))


class Compared(NamedTuple):
    """A comparison and the statistics of its settings."""

    comparison: Comparison
    lines: Sequence[Line]


def report(places: Sequence[Path], asked: Asked) -> None:
    """Print the table of the runs in some places and write all files. Raises UserError if there is no run to report, and OSError."""
    columns, out = names(asked.columns), Path(asked.out)
    metrics = [name for name in columns if name not in COLUMNS]
    runs, left_out = collect(places, asked.unfinished, metrics)
    where = ", ".join(printable(place) for place in places)
    if not runs:
        why = f": {printable(left_out[0].folder)}: {left_out[0].why}" if left_out else "; a run is a folder with a config.yaml"
        raise UserError(f"no run to report in {where}{why}")
    for name in metrics:
        if not any(name in run.measures for run in runs):
            raise UserError(f"columns={name}: no run records this metric; {did_you_mean(name, COLUMNS)}")
    threshold, returns = None if math.isnan(asked.threshold) else asked.threshold, None if asked.returns == "auto" else asked.returns
    comparison = replace(compare(runs, names(asked.by) or None, threshold, returns), columns=columns)
    if not comparison.settings:
        raise UserError(f"no run in {where} has a record of the {returns or 'evaluation or training'} return")
    _page_with(asked.into, "")  # a mistake is told before the work
    try:
        make_folder(out)
    except OSError as error:
        raise UserError(f"out={asked.out}: {error.strerror}") from None
    found = lines(comparison)
    whole = shown = Compared(comparison, found)
    if len(comparison.kinds) > MOST_LINES:
        shown = Compared(*population.best(comparison, found, MOST_LINES))
    console = table_console()
    console.print(table.terminal(*shown))
    notes = _notes(runs, comparison, found)
    for note in [*notes, *_short(left_out), *_replaced(out)]:
        console.sentence(note)
    for path in _write(out, asked.log_x, whole, shown, [*notes, *map(_line_of, left_out)]):
        console.print(str(path), soft_wrap=True)
    for page, text in _page_with(asked.into, table.markdown(*shown)).items():
        write_atomic(page, text.encode())
        console.print(str(page), soft_wrap=True)
    if asked.tensorboard:
        from warprun.report import events  # imports TensorBoard

        console.sentence(f"event files for TensorBoard: {events.write_missing(runs):,} written; other runs had one")


def _page_with(into: str, text: str) -> dict[Path, str]:
    """Return a page, and what it is with a text between its marks; nothing without a page. Raises UserError."""
    if not into:
        return {}
    name, _, mark = into.rpartition(":")
    page = Path(name)
    try:
        return {page: table.replaced(page.read_text(), mark, text)}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"into={page}: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    except UserError as error:
        raise UserError(f"into={page}:{mark}: {error}") from None


def _replaced(out: Path) -> list[str]:
    """Return a line if the folder `out` holds a report, which a new one replaces."""
    try:
        written = datetime.fromtimestamp((out / "report.html").stat().st_mtime)
    except FileNotFoundError:
        return []
    return [f"replaces the report of {written:%Y-%m-%d %H:%M} in {out}; out=FOLDER keeps it"]


def _notes(runs: Sequence[Run], comparison: Comparison, found: Sequence[Line]) -> list[str]:
    """Return the lines that a reader of the table needs to know."""
    notes = []
    groups = dict.fromkeys((run.env, run.group) for run in runs if run.group)
    if groups:
        notes.append(
            f"returns are those of {', '.join(f'group {printable(group)} of {printable(env)}' for env, group in groups)} (eval.group)"
        )
    if comparison.averaged:
        notes.append(f"averaged like seeds, although they differ: {', '.join(comparison.averaged)}")
    notes += _versions(runs)
    for threshold in dict.fromkeys(line.reached.threshold for line in found if line.reached):
        alike = [line for line in found if line.reached and line.reached.threshold == threshold]
        if not any(line.reached and line.reached.runs for line in alike):
            best = max(float(line.setting.best().max()) for line in alike)
            notes.append(f"threshold={threshold:g}: no run reaches it; the highest return of all records is {best:g}")
    few = [line for line in found if len(line.setting.curves()) < 4]
    if few:
        notes.append(f"fewer than 4 runs in {len(few)} of {counted(len(found), 'setting')}: intervals say little, and the IQM is the mean")
    open_runs = [run for run in runs if run.state not in ENDED]
    if open_runs:
        named = ", ".join(f"{printable(run.folder)} ({run.state})" for run in open_runs[:MOST_NAMED])
        notes.append(f"{counted(len(open_runs), 'run')} without an end: {named}{', ...' if len(open_runs) > MOST_NAMED else ''}")
    if len(comparison.kinds) > MOST_LINES:
        notes.append(
            f"the table, and the figures of single settings, show the {MOST_LINES} of {len(comparison.kinds):,} settings with the highest"
            " IQM; settings.csv has all, and by= averages over some"
        )
    return notes


def _versions(runs: Sequence[Run]) -> list[str]:
    """Return a line for each file and table of which runs of one environment have several versions."""
    of: dict[tuple[str, str, str], dict[str, list[Run]]] = {}
    for run in runs:
        for (name, options), digest in run.sources.items():
            of.setdefault((run.env, name, options), {}).setdefault(digest, []).append(run)
    notes = []
    for (env, name, _), versions in of.items():
        if len(versions) > 1:
            several = ", ".join(f"{len(own):,} as {printable(own[0].folder)}" for own in list(versions.values())[:MOST_NAMED])
            notes.append(f"runs of {printable(env)} have {len(versions):,} versions of {printable(name)}: {several}")
    rest = len(notes) - MOST_NAMED
    return [*notes[:MOST_NAMED], *([f"and {rest:,} more files or tables have several versions"] if rest > 0 else [])]


def _short(left_out: Sequence[LeftOut]) -> list[str]:
    rest = len(left_out) - MOST_NAMED
    return [*map(_line_of, left_out[:MOST_NAMED]), *([f"left out: {rest} more runs, named in report.html"] if rest > 0 else [])]


def _line_of(left_out: LeftOut) -> str:
    return printable(f"left out: {left_out.folder}: {left_out.why}")


def _write(out: Path, log_x: bool, whole: Compared, shown: Compared, notes: list[str]) -> list[Path]:
    """Write all files; return the paths of the main ones. Tables as CSV have all settings, the others those that are shown."""
    comparison, found = shown
    bands = {axis: banded(comparison, axis, log_x) for axis in AXES}
    table.write_settings(out / "settings.csv", *whole)
    table.write_runs(out / "runs.csv", whole.comparison)
    rows = [row for axis in AXES for row in csv_rows(bands[axis], axis)]
    table.write_csv(out / "curves.csv", ["env", *comparison.by, "axis", *HEADER], rows)
    drawn: list[tuple[Path, str]] = []
    if find_spec("matplotlib"):
        drawn = _draw(out, log_x, whole, shown, bands)
    else:
        notes.append("no figures: pip install matplotlib")
        print(notes[-1])
    title = f"{', '.join(comparison.envs)}: {counted(sum(len(setting.runs) for setting in whole.comparison.settings), 'run')}"
    images = (f"![{alternative(caption)}]({path.stem}.png)\n\n{caption}" for path, caption in drawn)
    body = [f"# {title}", table.markdown(comparison, found), *notes, *images]
    write_atomic(out / "report.md", ("\n\n".join(body) + "\n").encode())
    html = page(title, table.headings(comparison, found), 1 + len(comparison.by), table.rows(comparison, found), drawn, notes)
    write_atomic(out / "report.html", html.encode())
    return [out / "report.html", out / "report.md"]


def _draw(out: Path, log_x: bool, whole: Compared, shown: Compared, bands: dict[str, list[Banded]]) -> list[tuple[Path, str]]:
    """Write every figure as PNG and SVG; return the SVG files with their captions. Figures of an earlier report are replaced."""
    comparison, found = shown
    look = styles(comparison)
    captions = figures.CAPTIONS | population.CAPTIONS
    drawn = []
    with drawing():
        made = {
            "heatmap": population.heatmap(*whole),
            "response": population.response(*whole),
            "members": population.members(*whole),
            "learning": figures.learning(comparison, bands, look, log_x),
            "scores": figures.scores(comparison, found, look),
            "throughput": figures.throughput(comparison, look),
            "profiles": figures.profiles(comparison, look),
            "improvement": figures.improvement(comparison, look),
        }
        for name, figure in made.items():
            path = out / f"{name}.svg"
            if figure is None:
                path.unlink(missing_ok=True)
                path.with_suffix(".png").unlink(missing_ok=True)
                continue
            finish(figure)
            with atomic(path) as file:  # which follows no link
                figure.savefig(file, format="svg", metadata=WITHOUT_DATE)
            with atomic(path.with_suffix(".png")) as file:
                figure.savefig(file, format="png", dpi=DPI)
            drawn.append((path, captions[name]))
    return drawn
