"""Define the errors that the command line reports in one line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class UserError(Exception):
    """A mistake of the user: one line that says what is wrong, where, and what to do. Exit code 2."""


class TrainingFailed(Exception):
    """A run that produced a number that is not finite: one line that says where. Exit code 1."""


def one_line(error: BaseException) -> str:
    """Return an error as one line: the message of a `UserError` or `TrainingFailed`, else type and message."""
    words = " ".join(str(error).split())
    return words if isinstance(error, UserError | TrainingFailed) else f"{type(error).__name__}: {words}"


def did_you_mean(name: object, known: Sequence[str]) -> str:
    """Return the end of a message that refuses `name`: the most similar of the `known` names, or all of them."""
    near = difflib.get_close_matches(str(name), known, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
