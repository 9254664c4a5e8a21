"""Standard streams at the beginning and at the end of a command. Imported before signals are watched, so it imports next to nothing."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper


def open_streams() -> None:
    """Open the null device in place of closed standard streams, and let text streams escape characters that they cannot encode.

    Without this, the first file that a run opens would get the number of a closed stream, and all output with it.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            if null != number:
                os.close(null)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def close_streams() -> None:
    """Write what is left in the buffers. Python would end with another exit code and a message if that fails at its exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            with suppress(OSError):
                os.dup2(null, stream.fileno())
            os.close(null)
