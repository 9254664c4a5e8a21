"""Measure speeds and what docs/reproductions.md compares with published claims, and check the numbers of the documentation.

    python scripts/reproduce.py [--only NAME ...] [--wait MINUTES] [--minutes M] [--again] [--list]
    python scripts/reproduce.py --write
    python scripts/reproduce.py --gpu gpu_report.json
    python scripts/reproduce.py --check

A measurement has parts, such as a run with one seed or a round in which all candidates take turns. Each part is kept in
docs/benchmarks/reproduce.json as soon as it has ended and not measured again, except with --again, so the same command
goes on after an interruption; with --minutes no part starts after that time. Before the first part the load average must
fall below 0.3 within --wait minutes. A part beside which other processes used more than a tenth of a core is repeated,
three times at most, and then kept as not quiet: the page does not count it. --list prints the parts and expected times.

--write puts the tables into their pages, and numbers of lines into docs/architecture.md. --gpu adds a report of scripts/gpu_check.py to
docs/benchmarks/gpu_CARD.json, and then writes them, too. --check recomputes all, prints what differs, and exits with code 1 then.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import claims
import defaults_tables
import gpu_tables
import kernel_table
import mixed_equilibrium
import scale
import source_tables
import speed_tables
import speeds
from bench import peer_tables
from campaign import Parts, Values, measure
from claims import times_to_bar
from common import DOCS, ROOT, figure, replace, replaced, settings, stop
from evidence import Raw, quiet
from exarl import runs as ranks
from result_tables import TABLES
from speeds import SIZES

from warprun.errors import UserError
from warprun.report.style import COLORS

KEPT = DOCS / "benchmarks" / "reproduce.json"
PAGE = DOCS / "reproductions.md"
ROUNDS = 6
"""The least and the largest of six values hold the median with a chance of 97 %."""
SEEDS = 8


class Measurement(NamedTuple):
    """A list of parts, each measured on its own."""

    parts: Callable[[], Parts]
    minutes: int
    """About how long all parts take on two quiet cores."""
    file: Path = KEPT


# Measurements ---------------------------------------------------------------------------------------------------------


def warpsci_2bc() -> Parts:
    """Return a part for every environment, number of environments and seed; the numbers take turns."""
    cases = [(env, size, seed) for seed in range(SEEDS) for env in ("cartpole", "acrobot") for size in SIZES]
    return {f"{env} {size} seed={seed}": partial(speeds.learning_curve, env, size, seed) for env, size, seed in cases}


def rounds_of(measured: Callable[[], Values]) -> Parts:
    """Return a part for every round."""
    return {f"round {i}": measured for i in range(ROUNDS)}


def loops() -> Values:
    """Return the speeds of environments with loops; they are in tests/, which only a checkout has."""
    from bench.loops import speeds

    return speeds()


def exarl() -> Parts:
    """Return a part for every round and run of sleeping ranks."""
    return {f"{case} round={i}": partial(ranks.measure, case) for i in range(ROUNDS) for case in ranks.CASES}


MEASUREMENTS = {
    "throughput": Measurement(partial(rounds_of, speeds.throughput), 6),
    "limit": Measurement(partial(rounds_of, speeds.limit), 3),
    "startup": Measurement(partial(rounds_of, speeds.startup), 3),
    "loops": Measurement(partial(rounds_of, loops), 3),
    "actors": Measurement(partial(rounds_of, speeds.exchange), 5),
    "equilibrium": Measurement(mixed_equilibrium.parts, 1),
    "covid_speed": Measurement(partial(rounds_of, speeds.covid), 8),
    "warpsci_2bc": Measurement(warpsci_2bc, 12),
    "exarl_inference": Measurement(partial(rounds_of, ranks.inference), 15),
    "exarl": Measurement(exarl, 90),
    **{name: Measurement(partial(scale.parts, name), 2, scale.KEPT) for name in scale.CURVES},
}


# The pages ------------------------------------------------------------------------------------------------------------


def raw() -> Raw:
    """Return all raw numbers by file."""
    folder = DOCS / "benchmarks"
    files = {name: folder / f"{name}.json" for name in ("reproduce", "results", "peers")}
    return {name: json.loads(file.read_text()) if file.exists() else {} for name, file in files.items()} | {"gpu": gpu_tables.kept()}


FIGURE = DOCS / "figures" / "warpsci_2bc.png"
CAPTION = (
    "On two cores more environments reach a return later, in the median: seconds of training on a logarithmic axis, with 10 to 10,000"
    " environments, until an evaluation reaches 475 on CartPole and -85 on Acrobot; eight seeds, their medians, the least and the largest"
)


def draw(kept: Raw) -> None:
    """Draw the times of figures 2b and 2c: all seeds, medians, and lines from the least to the largest."""
    with figure(FIGURE, 1, (7.0, 3.2)) as (axes,):
        for env, color, shift in zip(("cartpole", "acrobot"), COLORS, (0.14, -0.14), strict=False):
            reached = times_to_bar(kept, env)
            for row, size in enumerate(SIZES):
                seeds = [run["s"] for run in quiet(kept, "warpsci_2bc", f"{env} {size} ").values() if run["s"] is not None]
                own, y = reached[size], row + shift
                axes.plot((own.low, own.high), (y, y), color=color, linewidth=1.2)
                axes.plot(seeds, [y] * len(seeds), "o", color=color, markersize=4, alpha=0.5, markeredgewidth=0)
                axes.plot(own.median, y, "|", color=color, markersize=13, markeredgewidth=2.5)
            axes.annotate(env, (reached[SIZES[-1]].low, y), (-8, 0), textcoords="offset points", ha="right", va="center", color=color)
        axes.set(xscale="log", xlabel="seconds of training until the return is reached", ylabel="environments")
        axes.set_yticks(range(len(SIZES)), [f"{size:,}" for size in SIZES])


def places(kept: Raw) -> Iterator[tuple[Path, str, str]]:
    """Yield page, mark and text of every table that is made from raw numbers."""
    yield PAGE, "claims", claims.table_of(kept)
    drawn = len(times_to_bar(kept, "acrobot")) == len(SIZES)
    yield PAGE, "figures", f"![{CAPTION}](figures/{FIGURE.name})\n\n" if drawn else ""
    for each in speed_tables.SPEEDS:
        yield *each.place, each.table(kept)
    yield DOCS.parent / "README.md", "speeds", speed_tables.first_sentence(kept) + gpu_tables.sentence(kept["gpu"])
    yield DOCS / "performance.md", "c program", speed_tables.limit_sentence(kept)
    yield DOCS / "benchmarks" / "exarl.md", "exarl runs", claims.of_ranks(kept)
    yield from scale.places()
    yield from source_tables.places()
    yield from gpu_tables.places(kept["gpu"])
    yield kernel_table.PAGE, "kernels", kernel_table.of_page(kernel_table.kept()[1])
    yield from peer_tables.of_pages(kept["peers"])
    yield DOCS / "agents.md", "equilibrium", mixed_equilibrium.of_page(quiet(kept, "equilibrium"))
    for mark, text in defaults_tables.of_page():
        yield defaults_tables.PAGE, mark, text
    for name, shown in TABLES.items():
        yield shown.page, shown.mark, shown.write(kept["results"][name])


def differences() -> list[str]:
    """Return a line for every table of a page that is not the one of the raw numbers."""
    found = []
    for page, mark, text in places(raw()):
        shown = page.read_text()
        if replaced(shown, mark, text) != shown:
            old = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- end -->", shown, flags=re.DOTALL)[0].splitlines()
            wrong = [line for line in old if line not in text.splitlines()] or ["a line is missing"]
            found.append(f"{page.relative_to(ROOT)}, {mark}: {wrong[0]}")
    walk = source_tables.WALK.read_text()
    return found + ["docs/architecture.md: a line has another number"] * (source_tables.numbered(walk) != walk)


def main() -> None:
    """Measure, write or check."""
    every = list(MEASUREMENTS)
    flags = {"again": False, "list": False, "write": False, "check": False}
    chosen = settings(__doc__, choices={"only": every}, only=every, wait=10.0, minutes=1e9, gpu="", **flags)
    if chosen.list:
        for name in chosen.only:
            print(f"{name}: {len(MEASUREMENTS[name].parts())} parts, about {MEASUREMENTS[name].minutes} minutes")
    elif chosen.write or chosen.gpu:
        if chosen.gpu:
            gpu_tables.keep(Path(chosen.gpu))
        for page, mark, text in places(raw()):
            replace(page, mark, text)
        source_tables.WALK.write_text(source_tables.numbered(source_tables.WALK.read_text()))
        if len(times_to_bar(raw(), "acrobot")) == len(SIZES):
            draw(raw())
    elif chosen.check:
        wrong = differences()
        for line in wrong:
            print(line)
        sys.exit(bool(wrong))
    else:
        try:
            for file in dict.fromkeys(MEASUREMENTS[name].file for name in chosen.only):
                parts = {name: MEASUREMENTS[name].parts() for name in chosen.only if MEASUREMENTS[name].file == file}
                measure(parts, file, chosen.wait, chosen.minutes, chosen.only if chosen.again else ())
        except UserError as error:  # such as data that are not there
            stop(error)


if __name__ == "__main__":
    main()
