"""Suggests the commands that evaluate and show finished runs, in the form that works in this installation. No torch."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def print_next_steps(runs: Sequence[Path], best: Path) -> None:
    """Print the commands that evaluate and show `runs`, folders of finished runs; `best` is the one to evaluate."""
    commands = next_steps(runs, best)
    if commands:
        # As for the records of a run, a closed pipe or a full disk is not a failure.
        with suppress(OSError):
            print("\n  ".join(["next:", *commands]), flush=True)


def next_steps(runs: Sequence[Path], best: Path) -> list[str]:
    """Return the commands of `print_next_steps`, without those whose input or program is missing."""
    place = runs[0] if len(runs) == 1 else Path(os.path.commonpath([run.absolute() for run in runs]))
    commands = []
    if (best / "checkpoints" / "manifest.json").is_file():
        commands.append(f"{program()} eval {typed(best)}")
    if any(any(run.glob("events.out.tfevents.*")) for run in runs):
        commands.append(f"{_program('tensorboard', 'tensorboard.main')} --logdir {typed(place)}")
    if any((run / "metrics.jsonl").is_file() for run in runs):
        commands.append(f"{program()} report {typed(place)}")
    return commands


def program() -> str:
    """Return the call of warprun."""
    return _program("warprun", "warprun")


def _program(name: str, module: str) -> str:
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
    """Return a path as a user would type it in the working folder."""
    # `absolute`, unlike `resolve`, does not follow links.
    here = path.absolute()
    return shlex.quote(str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here))
