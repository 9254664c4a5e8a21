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
    """Return the table in markdown, a line for each kernel: the largest numbers of all ways in which it has run."""
    lines = ["| environment | kernel | PTX instructions | accesses watched | difference | with ulps off |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    rows = [Row(**json.loads(file.read_text())) for file in (folder() / "rows").glob("*.json")]
    for subject, kernel in sorted({(row.subject, row.kernel) for row in rows}):
        own = [row for row in rows if (row.subject, row.kernel) == (subject, kernel)]
        accesses, instructions = sum(row.accesses for row in own), max(row.instructions for row in own)
        worst, approximate = max(row.worst for row in own), max(row.approximate for row in own)
        numbers = f"{instructions:,} | {accesses:,} | {worst:.1e} | {approximate:.1e}"
        lines.append(f"| {subject} | `{kernel}` | {numbers} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
