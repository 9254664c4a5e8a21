"""The table of all kernels that have run on the machine: their instructions, accesses and differences.

    python -m tests.ptx.table

prints what the tests of this folder have kept, in markdown; they keep it beside the kernels (`build.folder`).
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from tests.ptx.build import folder


class Row(NamedTuple):
    """What is known of one kernel."""

    subject: str
    """An environment, or a part of the learner."""
    way: str
    kernel: str
    instructions: int
    """Of PTX, in the text."""
    accesses: int
    """To memory, that were watched."""
    worst: float
    """Difference, relative to 1 + |value|, to the kernels of the CPU, or to float64."""
    approximate: float
    """The same with approximate instructions that are off as much as a GPU's may be."""


def keep(row: Row) -> None:
    """Keep a row for the table, in the place of an older one."""
    key = hashlib.sha256(f"{row[:3]}".encode()).hexdigest()[:16]
    rows = folder() / "rows"
    rows.mkdir(exist_ok=True)
    (rows / f"{key}.json").write_text(json.dumps(row._asdict()))


def table() -> str:
    """Return the table in markdown."""
    rows = sorted(Row(**json.loads(file.read_text())) for file in (folder() / "rows").glob("*.json"))
    columns = ["environment", "way", "kernel", "PTX instructions", "accesses watched", "difference", "with ulps off"]
    lines = [f"| {' | '.join(columns)} |", "|---|---|---|---:|---:|---:|---:|"]
    for row in rows:
        numbers = f"{row.instructions:,} | {row.accesses:,} | {row.worst:.1e} | {row.approximate:.1e}"
        lines.append(f"| {row.subject} | {row.way} | `{row.kernel}` | {numbers} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
