"""Reproduce what was published about EXARL, and write its section of docs/reproductions.md.

    python scripts/exarl_claims.py [--only PART ...] [--seeds N] [--minutes M] [--again] [--write]

Parts: `times` (push, pop, message, ...), `sleepy` (runs that sleep, and the model of them), `small` (claims 4 and 10), `11` (central
inference), and the learning runs `7`, `9` and `12`. What is measured is kept in docs/benchmarks/exarl.json and not repeated, except with
--again; with --minutes no group of runs starts after that time. --write makes the table and the figures from all that is kept. Needs
mpi4py with an MPI, simpy, and matplotlib. Measure with nothing else on the machine: runs of up to 28 ranks share its cores.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exarl import inference, learning, report, scaling, small

KEPT = Path(__file__).parents[1] / "docs" / "benchmarks" / "exarl.json"
PARTS = ("times", "sleepy", "small", "11", "12", "7", "9")


def load_average() -> float:
    """Return the processes that wanted a core in the last minute."""
    return round(os.getloadavg()[0], 1)


def sleepy(kept: dict[str, Any], again: bool, deadline: float) -> Iterator[None]:
    """Run the cases whose ranks sleep, those of the same number of ranks together."""
    cases = [case for case in scaling.CASES if again or case not in kept.setdefault("sleepy", {})]
    for processes in sorted({scaling.job(case).processes for case in cases}):
        if time.monotonic() > deadline:
            return
        for case, found in scaling.measure([case for case in cases if scaling.job(case).processes == processes]):
            kept["sleepy"][case] = found | {"load": load_average()}
            print(case, found, flush=True)
            yield


def learned(kept: dict[str, Any], claim: int, seeds: int | None, again: bool, deadline: float) -> Iterator[None]:
    """Make the learning runs of a claim that are not kept, a kind at a time."""
    for name, kind in learning.KINDS.items():
        runs = kept.setdefault("learning", {}).setdefault(name, {})
        wanted = range(kind.seeds if seeds is None else min(seeds, kind.seeds))
        missing = [seed for seed in wanted if again or str(seed) not in runs]
        if kind.claim != claim or not missing or time.monotonic() > deadline:
            continue
        for _, seed, found in learning.measure(name, missing):
            runs[str(seed)] = found | {"load": load_average()}
            print(name, seed, {key: value for key, value in found.items() if key not in ("curve", "fifties")}, flush=True)
            yield


def parts(kept: dict[str, Any], chosen: argparse.Namespace) -> Iterator[None]:
    """Measure what is chosen; yield whenever there is something new to keep."""
    deadline = time.monotonic() + 60 * chosen.minutes
    for part in chosen.only or PARTS:
        if part == "times" and (chosen.again or "times" not in kept):
            kept["times"] = scaling.exchange()
            print(kept["times"], flush=True)
            yield
        elif part == "small" and (chosen.again or "small" not in kept):
            kept["small"] = {"generation": small.generation(), "collisions": small.collisions(), "load": load_average()}
            yield
        elif part == "11" and (chosen.again or "11" not in kept):
            kept["11"] = dict(inference.measure()) | {"load": load_average()}
            print(kept["11"], flush=True)
            yield
        elif part == "sleepy":
            yield from sleepy(kept, chosen.again, deadline)
        elif part in ("7", "9", "12"):
            yield from learned(kept, int(part), chosen.seeds, chosen.again, deadline)


def main() -> int:
    """Measure, keep, print the table, and write it with the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seeds", type=int, help="learning runs of each kind, at most those of the page")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no group of runs after this time")
    parser.add_argument("--again", action="store_true", help="measure anew what is kept")
    parser.add_argument("--write", action="store_true", help="write the section of docs/reproductions.md and the figures")
    chosen = parser.parse_args()
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for _ in parts(kept, chosen):
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    if chosen.write:
        report.write(kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
