"""Suggests the commands that evaluate and show finished runs. No torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from warprun.errors import program, typed


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
        commands.append(f"{program('tensorboard', 'tensorboard.main')} --logdir {typed(place)}")
    if any((run / "metrics.jsonl").is_file() for run in runs):
        commands.append(f"{program()} report {typed(place)}")
    return commands
