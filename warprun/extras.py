"""Libraries that are extras of warprun: imported when they are needed, with one line that says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from warprun.errors import NotInstalledError


@contextmanager
def needs(library: str, extra: str) -> Iterator[None]:
    """Convert a missing `library` to a NotInstalledError, which names the extra of warprun that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise NotInstalledError(f'{library} is not installed; run: pip install "warprun[{extra}]"') from error
