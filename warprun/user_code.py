"""Errors that the code of a user raises, in one line with its file and line. No numba, no torch."""

from __future__ import annotations

import dis
import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from warprun.errors import ContractError, OtherRankError, UserError
from warprun.sources import ISOLATED


@contextmanager
def errors_of_user(what_fails: str, what: str = "an environment") -> Iterator[None]:
    """Convert an exception that a user's code raises to a UserError with file and line; `what_fails` begins its message.

    `what` the code defines.
    """
    try:
        yield
    except (UserError, OtherRankError):
        raise
    except ContractError as error:
        place = "" if error.names_place else place_of(error) or f"{what_fails}: "
        raise UserError(f"{place}{_line(error)}") from error
    except BaseException as error:
        # The code of a user can raise anything, SystemExit too. Its file and line help, frames of the importer do not.
        if isinstance(error, KeyboardInterrupt) and not _is_raised_by_code(error):
            raise
        ending = f"; {what} cannot end the program" if isinstance(error, SystemExit | KeyboardInterrupt) else ""
        raise UserError(f"{what_fails}: {place_of(error)}{type(error).__name__}: {_line(error)}{ending}") from error


def _is_raised_by_code(error: BaseException) -> bool:
    """Return whether a `raise` statement raised the error. The handler of a signal can raise after any instruction."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def place_of(error: BaseException) -> str:
    """Return "FILE:LINE: " of the innermost frame in the code of the user; empty if there is none."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: " if error.lineno else f"{error.filename}: " if error.filename else ""
    # The innermost frame in the code of the user, not in the importer or a library.
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")) + (str(Path(__file__).parent), "<")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(libraries) and "site-packages" not in Path(frame.filename).parts
    ]
    if not frames:
        return ""
    function = "" if frames[-1].name == "<module>" else f" in {frames[-1].name}"
    return f"{frames[-1].filename}:{frames[-1].lineno}{function}: "


def _line(error: BaseException) -> str:
    try:
        words = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    except Exception:  # __str__ of an error is code of the user
        words = "(its text cannot be read)"
    return re.sub(rf"{ISOLATED}\w+\.", "", words)
