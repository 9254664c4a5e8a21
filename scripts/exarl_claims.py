"""Measure runs of learners and actors as EXARL has them, and write docs/benchmarks/exarl.md.

    python scripts/exarl_claims.py [--only PART ...] [--minutes M] [--again] [--write]

Parts: `times` (push, pop, message, ...), `sleepy` (runs that sleep, and the model of them), `small` (claims 4 and 10)
and `11` (central inference). What is measured is kept in docs/benchmarks/exarl.json and not repeated, except with
--again; with --minutes nothing starts after that time. --write makes the table and the figure from all that is kept.
Needs mpi4py with an MPI, simpy, gymnasium, and matplotlib. Nothing here decides a claim: `python scripts/reproduce.py
--only exarl exarl_inference` repeats the runs on a quiet machine, and docs/reproductions.md has the verdicts. The
trainings of claims 7, 9 and 12 are `python scripts/results.py exarl --jobs 1`.
"""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

from common import DOCS, settings
from exarl import page, runs, small

KEPT = DOCS / "benchmarks" / "exarl.json"
PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "times": runs.exchange,
    "small": lambda: {"generation": small.generation(), "collisions": small.collisions(), "load": load_average()},
    "11": lambda: runs.inference() | {"load": load_average()},
}
"""Part -> what measures it, besides `sleepy`."""


def load_average() -> float:
    """Return the processes that wanted a core in the last minute."""
    return round(os.getloadavg()[0], 1)


def measure(kept: dict[str, Any], chosen: Namespace) -> Iterator[object]:
    """Measure what is chosen and not kept; yield what is new as soon as it can be kept."""
    deadline = time.monotonic() + 60 * chosen.minutes
    for part in chosen.only:
        if part in PARTS and (chosen.again or part not in kept) and time.monotonic() < deadline:
            kept[part] = PARTS[part]()
            yield kept[part]
        sleepy = kept.setdefault("sleepy", {})
        cases = [case for case in runs.CASES if chosen.again or case not in sleepy] if part == "sleepy" else []
        for case in cases:
            if time.monotonic() < deadline:
                sleepy[case] = runs.measure(case) | {"load": load_average()}
                yield f"{case} {sleepy[case]}"


def main() -> None:
    """Measure, keep, and write the tables with the figure."""
    every = [*PARTS, "sleepy"]
    chosen = settings(__doc__, choices={"only": every}, only=every, minutes=1e9, again=False, write=False)
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for found in measure(kept, chosen):
        print(found, flush=True)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    if chosen.write:
        page.write(kept)


if __name__ == "__main__":
    main()
