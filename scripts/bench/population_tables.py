"""The tables of docs/benchmarks/population.md, from what `population.py` has measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from common import table

PARTS = ("peers", "seeds", "sizes", "solved", "grid")
Found = dict[str, Any]


def tables(found: Found) -> str:
    """Return what is measured in Markdown."""
    return "\n".join(text for _, text in of_page(found))


def of_page(found: Found) -> Iterator[tuple[str, str]]:
    """Yield mark and text of the tables of docs/benchmarks/population.md, of those that are measured."""
    for part in PARTS:
        if part in found:
            yield part, TABLES[part](found[part], found[part]["settings"]) + _about(part, found[part])


def _about(part: str, measured: Found) -> str:
    """Return when, where and beside which load a part was measured."""
    known = [f"{name}: {', '.join(f'{key} {value}' for key, value in each.items())}" for name, each in measured["versions"].items()]
    rounds = measured["settings"]["rounds"]
    how = "one round" if part == "grid" else f"medians of {rounds} rounds"
    return f"\n{measured['date']}, {measured['machine']}, load average before {measured['load']:.1f}; {how}. {'; '.join(known)}.\n"


def middle(rows: Sequence[Found], key: str) -> float | None:
    """Return the median of a key over rounds; None if it was not measured."""
    values = [each[key] for each in rows if key in each]
    return median(values) if values else None


def million(rate: float | None) -> str:
    """Return steps/s in millions."""
    return "" if rate is None else f"{rate / 1e6:.3g}"


def times(ours: float | None, theirs: float | None) -> str:
    """Return how many times as large the first number is."""
    return "" if not ours or not theirs else f"{ours / theirs:.2f}"


def peers_table(part: Found, chosen: Found) -> str:
    """Return the table of the part `peers`."""
    keys = ("training_rate", "training_cpu_rate", "rate")
    mine = {key: middle(part["rows"]["warprun"], key) for key in keys}
    cells = []
    for name, rows in part["rows"].items():
        theirs = {key: middle(rows, key) for key in keys}
        ratios = [] if name.startswith("warprun") else [times(mine[key], theirs[key]) for key in keys[:2]]
        cells.append((name, *(million(theirs[key]) for key in keys), *(ratios or ("", "")), part["told"].get(name, "")))
    titles = ("training, M steps/s", "per CPU s", "command, M steps/s", "warprun is", "per CPU s", "how")
    return table((f"{part['agents']} agents, PPO", *titles), cells)


def seeds_table(part: Found, chosen: Found) -> str:
    """Return the table of the part `seeds`."""
    mine = part["rows"]["warprun"]
    cells = []
    for name, rows in part["rows"].items():
        ratios = [times(middle(rows, key), middle(mine, key)) for key in ("wall_s", "cpu_s")]
        seconds = [f"{middle(rows, key):.1f}" for key in ("wall_s", "cpu_s")]
        share = f"{rows[0]['solved']}/{rows[0]['agents']}"
        cells.append((name, *seconds, share, *(ratios if rows is not mine else ("", ""))))
    return table((f"{chosen['seeds']} seeds of CartPole", "s", "CPU s", "solved", "times as long", "CPU"), cells)


def sizes_table(part: Found, chosen: Found) -> str:
    """Return the table of the part `sizes`."""
    keys = ("training_rate", "training_cpu_rate", "rate", "cpu_rate")
    cells = [(name, *(million(middle(rows, key)) for key in keys)) for name, rows in part["rows"].items()]
    few, many = part["rows"].values()
    cells.append(("many / few", *(times(middle(many, key), middle(few, key)) for key in keys)))
    return table(("agents", "training, M steps/s", "per CPU s", "command, M steps/s", "per CPU s"), cells)


def solved_table(part: Found, chosen: Found) -> str:
    """Return the table of the part `solved`."""
    cells = []
    for name, rows in part["rows"].items():
        wall_s, agents, count = middle(rows, "wall_s"), rows[0]["agents"], middle(rows, "solved")
        each = f"{1e3 * middle(rows, 'cpu_s') / count:.0f}" if "cpu_s" in rows[0] and count else ""
        compiled = f"{rows[0]['compiled_s']:.1f}" if "compiled_s" in rows[0] else ""
        cells.append((name, f"{count:.0f}/{agents}", f"{wall_s:.1f}", f"{count / wall_s:.1f}", each, compiled))
    return table(("CartPole", "solved", "s", "solved per s", "CPU ms for each", "s of compilation before"), cells)


def grid_table(part: Found, chosen: Found) -> str:
    """Return the table of the part `grid`."""
    (found,) = part["rows"]["warprun"]
    side, rate = chosen["side"], million(found["steps"] / found["wall_s"])
    cells = (f"{side} x {side}", f"{chosen['grid_steps']:,}", f"{found['wall_s']:.1f}", f"{found['cpu_s']:.1f}", rate)
    return table(("grid", "steps of each", "s", "CPU s", "M steps/s"), [cells])


TABLES: dict[str, Callable[[Found, Found], str]] = {
    "peers": peers_table,
    "seeds": seeds_table,
    "sizes": sizes_table,
    "solved": solved_table,
    "grid": grid_table,
}
