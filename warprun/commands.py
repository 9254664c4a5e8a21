"""Commands that warprun prints for a person: as they work in the shell and in the working folder that it was called from. No torch."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

WORDS = ("latest", "auto", "null")
"""Values of settings and arguments of verbs that name no path."""


def program(name: str = "warprun", module: str = "warprun") -> str:
    """Return the call of a program of this Python: by its name if PATH finds it, else by its path, or as a module."""
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
