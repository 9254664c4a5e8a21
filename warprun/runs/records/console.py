"""Consoles for tables: texts are printed as they are, and a reader that has gone is an error of the caller's choice."""

from __future__ import annotations

from rich.console import Console


class PlainConsole(Console):
    """A console that raises an error if its reader has gone (`warprun | head`), where rich would exit."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("standard output has no reader any more")


def table_console(width_of_file: int) -> PlainConsole:
    """Return a console for texts of users: no markup, no emoji codes. A file has no width, so it gets `width_of_file` columns."""
    console = PlainConsole(markup=False, emoji=False, highlight=False)
    return console if console.is_terminal else PlainConsole(markup=False, emoji=False, highlight=False, width=width_of_file)
