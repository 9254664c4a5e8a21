"""The findings of a check, and how they are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from warprun.files import write_atomic
from warprun.runs.records.console import table_console

Verdict = Literal["passed", "note", "warning", "failed"]
STYLES: dict[Verdict, str] = {"passed": "green", "note": "cyan", "warning": "yellow", "failed": "red"}


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    check: str
    verdict: Verdict
    """passed; note: a measured number, or a check that could not run and why; warning: may be intended; failed: a mistake."""
    message: str
    """What was found and what to do; if passed, what was tried."""


@dataclass(frozen=True)
class Problem:
    """Something that a check found wrong."""

    message: str
    verdict: Verdict = "failed"


def doubt(message: str) -> Problem:
    """Return a problem that may be intended."""
    return Problem(message, "warning")


def judge(check: str, problems: Iterable[Problem], tried: str) -> list[Finding]:
    """Return the findings of a check: its problems, or that what was `tried` passed."""
    found = [Finding(check, problem.verdict, problem.message) for problem in problems]
    return found or [Finding(check, "passed", tried)]


def print_findings(found: Sequence[Finding]) -> None:
    """Print the table, and below it how many checks failed."""
    table = Table("check", "result", "what, and what to do")
    for finding in found:
        table.add_row(finding.check, Text(finding.verdict, style=STYLES[finding.verdict]), finding.message)
    console = table_console(160)
    console.print(table)
    counts = {verdict: sum(finding.verdict == verdict for finding in found) for verdict in STYLES}
    console.print(f"{counts['failed']} failed, {counts['warning']} warnings, {counts['passed']} passed", soft_wrap=True)


def write_findings(found: Sequence[Finding], name: str, seconds: float, path: Path) -> None:
    """Write the findings about environment `name` as JSON. Raises OSError."""
    content = {"environment": name, "seconds": round(seconds, 1), "findings": [asdict(finding) for finding in found]}
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())
