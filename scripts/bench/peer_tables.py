"""The tables of what `peers.py` has measured, in docs/benchmarks/throughput.md, off_policy.md and docs/performance.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parent))

from common import DOCS, described, table
from peer_work import WORKS
from peers import BATCHED, FEW, LIMIT, MANY, MEMORY, ON_POLICY, ONE, OWN

Found = dict[str, Any]
Rates = tuple[float, ...]
THROUGHPUT, OFF_POLICY = DOCS / "benchmarks" / "throughput.md", DOCS / "benchmarks" / "off_policy.md"
PLACES = (
    (THROUGHPUT, "peers", ON_POLICY, 1e6),
    (THROUGHPUT, "few", ("few",), 1e6),
    (THROUGHPUT, "batched", (*BATCHED, "gymnax-one"), 1e6),
    (THROUGHPUT, "memory", MEMORY, 1e3),
    (THROUGHPUT, "population", ("population",), 1e6),
    (THROUGHPUT, "sweeps", ("seeds", "solved"), 1.0),
    (OFF_POLICY, "off policy one", ONE, 1e3),
    (OFF_POLICY, "off policy many", (*FEW, *MANY), 1e3),
)
"""Page, mark, works, and the unit of their rates."""
UNITS = {1e6: "million steps/s", 1e3: "thousand steps/s", 1.0: "solved agents/s"}


class Row(NamedTuple):
    """A peer at a work."""

    name: str
    trunk: str
    n_envs: int
    settings: str
    wall: Rates
    """Steps per second, of each round."""
    cpu: Rates
    """Steps per second of processor time."""

    def reference(self, rows: Sequence[Row]) -> Row | None:
        """Return warprun with as many trunks, and with as many environments if it was measured with them."""
        ours = [row for row in rows if row.name == OWN and row.trunk == self.trunk and self.name not in (OWN, LIMIT)]
        return next((row for row in ours if row.n_envs == self.n_envs), next(iter(ours), None))

    def times(self, rows: Sequence[Row]) -> tuple[float, float] | None:
        """Return how many times as fast the reference is, on the clock and for its processor time; ratios of medians."""
        ours = self.reference(rows)
        return (median(ours.wall) / median(self.wall), median(ours.cpu) / median(self.cpu)) if ours else None


def counted(own: Found) -> tuple[list[Found], str]:
    """Return the values of the quiet rounds, or of all if none was quiet, and a mark for these."""
    rounds = [part for title, part in own["parts"].items() if title.startswith("round")]
    quiet = [part["values"] for part in rounds if part["quiet"]]
    return quiet or [part["values"] for part in rounds], "" if quiet else " ~"


def rows_of(work: str, own: Found) -> list[Row]:
    """Return the rows of a work."""
    rounds, _ = counted(own)
    rows = []
    for key, told in own["parts"]["prepared"]["values"].items():
        wall, cpu = zip(*(values[key] for values in rounds), strict=True)
        how = told["settings"]
        if told["name"] == LIMIT:  # its rounds are multiply-adds
            flop = WORKS[work].flop_per_step()
            how = f"{2e-9 * median(wall):.0f} GFLOP/s, {flop / 1e6:.3g} MFLOP for a step"
            wall, cpu = (tuple(2 * rate / flop for rate in rates) for rates in (wall, cpu))
        rows.append(Row(told["name"], told["trunk"], told["n_envs"], how, wall, cpu))
    return rows


def measured(own: Found | None) -> bool:
    """Return whether a work has a round."""
    return own is not None and any(title.startswith("round") for title in own["parts"])


def of_works(found: Found, works: Sequence[str], unit: float) -> str:
    """Return the table of some works, empty before they are measured."""
    cells = []
    works = [work for work in works if measured(found.get(work))]
    for work in works:
        rows = rows_of(work, found[work])
        most = next((median(row.wall) for row in rows if row.name == LIMIT), None)
        for row in rows:
            low, middle, high = (f"{rate / unit:.3g}" for rate in (min(row.wall), median(row.wall), max(row.wall)))
            share = f"{100 * median(row.wall) / most:.0f} %" if most and row.trunk == "shared" and row.name != LIMIT else ""
            times = row.times(rows)
            cells.append(
                (
                    WORKS[work].label + counted(found[work])[1],
                    row.name + (", two trunks" if row.trunk == "separate" else ""),
                    f"{row.n_envs:,}" if row.n_envs else "",
                    row.settings,
                    f"{middle} [{low}, {high}]",
                    f"{median(row.cpu) / unit:.3g}",
                    f"{median(row.wall) / median(row.cpu):.2f}",
                    share,
                    *((f"{each:.2f} x" for each in times) if times else ("", "")),
                )
            )
    titles = ["work", "who", "environments", "how", UNITS[unit], "per CPU s", "cores", "of the limit", "warprun is", "per CPU s"]
    return table(titles, cells) + about(found, works) if works else ""


def about(found: Found, works: Sequence[str]) -> str:
    """Return when, on what and beside which load works were measured, in a sentence for each machine and commit."""
    written, groups = "", dict[tuple[str, str], list[str]]()
    for work in works:
        groups.setdefault((described(found[work]["machine"]), found[work]["commit"]), []).append(work)
    for (machine, commit), own_works in groups.items():
        owns = [found[work] for work in own_works]
        rounds = [part for own in owns for title, part in own["parts"].items() if title.startswith("round")]
        dates = sorted(part["date"].split()[0] for part in rounds)
        foreign = [part["foreign_cores"] for part in rounds if part["quiet"]]
        when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        written += (
            ("\n" if len(groups) == 1 else f"\n{'; '.join(dict.fromkeys(WORKS[work].label for work in own_works))}: ")
            + f"{when}, {machine}, commit {commit}; medians of {len(rounds) // len(owns)} rounds of at "
            f"least {owns[0]['seconds']:g} s, with the least and the largest. Load average before at most "
            f"{max(load for own in owns for load in own['load_before'])}"
            + (f", other processes at most {max(foreign):.2f} of a core" if foreign else "")
            + f"; {len(rounds) - len(foreign)} of {len(rounds)} rounds were not quiet and are left out if others were.\n"
        )
    return written


def compared(found: Found) -> str:
    """Return a sentence with what A2C by other packages is compared with, empty before it is measured."""
    if not measured(found.get("a2c-64")):
        return ""
    rows, texts = rows_of("a2c-64", found["a2c-64"]), []
    for name in dict.fromkeys(row.name for row in rows if row.name not in (OWN, LIMIT)):
        times = sorted(each[0] for row in rows if row.name == name and (each := row.times(rows)))
        texts.append(f"{' to '.join(dict.fromkeys(f'{each:.1f}' for each in (times[0], times[-1])))} times as fast as {name}")
    listed = " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))
    processor = found["a2c-64"]["machine"]["processor"]
    return f"A2C with 64-64 units is {listed} (ranges: with 1,000 and with 10,000 environments; {processor}).\n"


def of_pages(found: Found) -> Iterator[tuple[Path, str, str]]:
    """Yield page, mark and text of every table."""
    for page, mark, works, unit in PLACES:
        yield page, mark, of_works(found, works, unit)
    yield DOCS / "performance.md", "compared", compared(found)
