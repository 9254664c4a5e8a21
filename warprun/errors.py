"""Errors that the command line reports in one line, and what their messages are made of: names, texts and commands."""

from __future__ import annotations

import difflib
import os
import re
import reprlib
import shlex
import shutil
import signal
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MOST_SHOWN = 100
"""Characters of a text of the user that a message quotes."""
MOST_PRINTED = 1000
"""Characters of a message."""
WORDS = ("latest", "auto", "null")
"""Values of settings and arguments of verbs that name no path."""


class UserError(Exception):
    """A mistake of the user: one line that says what is wrong, where, and what to do. Exit code 2."""


class NotInstalledError(UserError):
    """A library is missing that an extra of warprun installs."""


class ContractError(ValueError):
    """A mistake in the definition of an environment; the message is one line."""

    def __init__(self, message: str, names_place: bool = False) -> None:
        super().__init__(message)
        self.names_place = names_place
        """Whether the message begins with the file and the line of the mistake; else they are those of the call that raised."""


class RunHasEndedError(UserError):
    """A run that cannot be resumed because it has reached its end."""


class TrainingFailed(Exception):
    """A run that cannot go on, such as after a number that is not finite: one line that says why and where. Exit code 1."""


class RankFailed(TrainingFailed):
    """A run of several processes one of which failed or was lost: one line that names it. Exit code 1."""


class OtherRankError(Exception):
    """Another rank failed while the run was set up, and rank 0 says how: this one has nothing to say."""


@contextmanager
def needs(library: str, extra: str) -> Iterator[None]:
    """Convert a missing `library` to a NotInstalledError, which names the extra of warprun that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise NotInstalledError(f'{library} is not installed; run: pip install "warprun[{extra}]"') from error


def require(holds: bool, message: str) -> None:
    """Raise UserError with a message if a condition does not hold."""
    if not holds:
        raise UserError(message)


def check_one_of(key: str, value: str, known: Collection[str]) -> None:
    """Raise UserError if the value of a setting is not one of the known ones."""
    if value not in known:  # looking for the nearest one takes time, and every run checks its settings
        raise UserError(f"{key}={value} is not one of {', '.join(known)}{nearest(value, known)}")


def check_range(key: str, value: float | None, least: int, most: int, most_text: str = "") -> None:
    """Raise UserError if the value of a setting is not from `least` to `most`, which the message calls `most_text`; None passes."""
    require(value is None or least <= value <= most, f"{key}={value} must be from {least} to {most_text or most}")


def one_line(error: BaseException) -> str:
    """Return an error as one line: the message of a `UserError` or `TrainingFailed`, else type and message."""
    words = _on_one_line(str(error))
    return words if isinstance(error, UserError | TrainingFailed) else f"{type(error).__name__}: {words}"


def shown(value: object) -> str:
    """Return a value of the user as a message quotes it: its repr on one line, and only its beginning if it is long."""
    if isinstance(value, str):
        return repr(value if len(value) <= MOST_SHOWN else f"{value[:MOST_SHOWN]}...")
    return " ".join(reprlib.repr(value).split())


def counted(count: int, noun: str) -> str:
    """Return a number and what it counts: `1 run`, `2 runs`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def printable(text: object, most: int = 200) -> str:
    """Return text from outside on one line, its middle cut beyond `most` characters, without control characters, which a terminal obeys."""
    line = _on_one_line(str(text))
    line = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line)
    return line if len(line) <= most else f"{line[: most // 2]}...{line[-(most // 2) :]}"


def _on_one_line(text: str) -> str:
    return re.sub(r"\s*[^\S ]\s*", " ", text.strip())  # spaces stay: they can be part of a path


def did_you_mean(name: object, known: Sequence[str]) -> str:
    """Return the end of a message that refuses `name`: the most similar of the `known` names, or all of them."""
    match = similar(str(name), known)
    return f"did you mean {match!r}?" if match is not None else f"there are: {', '.join(known)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name that is most similar to `name`, or an empty string."""
    match = similar(name, known)
    return f"; did you mean {match!r}?" if match is not None else ""


def similar(name: str, known: Iterable[str], most_edits: int | None = None) -> str | None:
    """Return the known name with the fewest edits from `name`, in upper or lower case; None if all differ too much.

    `most_edits` None: a quarter of the characters, and at least one, or a similarity of 0.6 in the sense of difflib.
    """
    if len(name) > MOST_SHOWN:
        return None
    limit = max(1, len(name) // 4) if most_edits is None else most_edits
    ranked = []
    for candidate in known:
        ratio = difflib.SequenceMatcher(None, name.lower(), candidate.lower()).ratio()
        found = edits(name.lower(), candidate.lower()) if abs(len(name) - len(candidate)) <= limit else len(name)
        if found <= limit or (most_edits is None and ratio >= 0.6):
            ranked.append((min(found, limit + 1), -ratio, candidate))
    return min(ranked)[2] if ranked else None


def edits(one: str, other: str) -> int:
    """Return the optimal string alignment distance: characters inserted, deleted or replaced, and neighbours exchanged."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


def program(name: str = "warprun", module: str = "warprun") -> str:
    """Return the call of a program of this Python as a person types it: by its name if PATH finds it, else by its path, or as a module."""
    found, own = shutil.which(name), Path(sysconfig.get_path("scripts"), name)
    if not own.exists():
        return f"{_python()} -m {module}"
    return name if found and own.samefile(found) else typed(own)


def _python() -> str:
    # Paths are compared, not files: the `python` of a virtual environment is a link to a Python without its packages.
    found = shutil.which("python")
    return "python" if found and os.path.abspath(found) == sys.executable else typed(Path(sys.executable))


def typed(path: Path) -> str:
    """Return a path as a user types it in the working folder, as an argument of a verb or as the value of a setting."""
    # `absolute`, unlike `resolve`, does not follow links.
    here = path.absolute()
    text = str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here)
    return shlex.quote(f"./{text}" if text in WORDS or text.startswith(("-", "~", "'", '"')) else text)


def signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals have only numbers."""
    return signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
