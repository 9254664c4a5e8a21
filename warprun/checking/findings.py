"""The findings of a check, their table and their file."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FunctionType
from typing import Literal

from rich.table import Table
from rich.text import Text

from warprun.environment import Environment, Group
from warprun.errors import counted, printable
from warprun.files import write_atomic
from warprun.runs.records.terminal import table_console
from warprun.spec import GroupSpec

Verdict = Literal["passed", "note", "warning", "failed"]
STYLES: dict[Verdict, str] = {"passed": "green", "note": "cyan", "warning": "yellow", "failed": "red"}


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    check: str
    verdict: Verdict
    """passed; note: a fact to know, or a check that could not run and why; warning: may be intended; failed: a mistake."""
    message: str
    """The mistake and its remedy; if passed, the extent of the check."""


@dataclass(frozen=True)
class Problem:
    """A mistake, or a doubt, that a check found."""

    message: str
    verdict: Verdict = "failed"


def doubt(message: str) -> Problem:
    """Return a problem that may be intended."""
    return Problem(message, "warning")


def judge(check: str, problems: Iterable[Problem], tried: str) -> list[Finding]:
    """Return the findings of a check: its problems, or that it passed, with `tried` as its message."""
    found = [Finding(check, problem.verdict, problem.message) for problem in problems]
    return found or [Finding(check, "passed", tried)]


def print_findings(found: Sequence[Finding]) -> None:
    """Print the table, and below it how many checks failed."""
    table = Table()
    for column in ("check", "result", "what, and what to do"):
        table.add_column(column, no_wrap=column in ("check", "result"))
    for finding in found:
        table.add_row(finding.check, Text(finding.verdict, style=STYLES[finding.verdict]), finding.message)
    console = table_console()
    console.print(table)
    counts = {verdict: sum(finding.verdict == verdict for finding in found) for verdict in STYLES}
    console.print(f"{counts['failed']} failed, {counted(counts['warning'], 'warning')}, {counts['passed']} passed", soft_wrap=True)


def write_findings(found: Sequence[Finding], name: str, seconds: float, path: Path) -> None:
    """Write the findings about environment `name` as JSON. Raises OSError."""
    content = {"environment": name, "seconds": round(seconds, 1), "findings": [asdict(finding) for finding in found]}
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())


LONGEST = 50
"""Characters of an expression in a message."""
MOST_LISTED = 5


def place_of(function: Callable[..., object]) -> str:
    """Return "FILE:LINE in NAME" of a function, the file by its last two parts."""
    plain = inspect.unwrap(function)
    assert isinstance(plain, FunctionType)
    code = plain.__code__
    return f"{short(code.co_filename)}:{code.co_firstlineno} in {plain.__name__}"


def short(file: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(Path(file).parts[-2:])


def feature(group: GroupSpec, n: int, environment: Environment | None) -> str:
    """Return what a message calls feature `n` of an observation, with its expression and place if `observe` returns a tuple."""
    named = f"observation {n} of {group.name}"
    if environment is None:
        return named
    observe = environment.group(group.name).observe
    parts = returned(observe)
    expression = f" ({parts[n]})" if len(parts) == group.observation.size else ""
    return f"{named}{expression}, {place_of(observe)}"


def returned(function: Callable[..., object]) -> list[str]:
    """Return the expressions of the tuple that the last `return` of a function has; empty if there is none."""
    found = [node.value for node in returns(function) if isinstance(node.value, ast.Tuple)]
    if not found or not isinstance(found[-1], ast.Tuple):
        return []
    return [printable(ast.unparse(element), LONGEST) for element in found[-1].elts]


def returns(function: Callable[..., object]) -> list[ast.Return]:
    """Return the `return` statements of a function; none if its source cannot be read."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, SyntaxError, TypeError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Return)]


def phases_of(environment: Environment, group: Group) -> str:
    """Return the places of the functions that step a group."""
    return ", ".join(place_of(phase.function) for phase in environment.phases if phase.group == group.name)


def listed(words: Iterable[object]) -> str:
    """Return a list in words, at most MOST_LISTED of them."""
    every = [str(word) for word in words]
    more = f" and {len(every) - MOST_LISTED} more" if len(every) > MOST_LISTED else ""
    return ", ".join(every[:MOST_LISTED]) + more
