"""The interface of every place that records are written to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from warprun.config.reading import flat_items

PREFIX = "events.out.tfevents."
"""Beginning of the names of the files of TensorBoard."""


class Row(NamedTuple):
    """The values of one log interval."""

    env_steps: int
    """Environment steps since the start of the run."""
    wall_s: float
    """Seconds since the start of the run."""
    values: Mapping[str, float]
    """By tag, such as `train/return`."""


class Sink:
    """A place for records. A method that is not overridden does nothing; each may raise OSError."""

    name = "records"
    """Its name in warnings."""

    def start(self, info: Mapping[str, object]) -> None:
        """Receive the hardware and versions, before the first row."""

    def log(self, row: Row) -> None:
        """Receive the values of one log interval."""

    def show(self, row: Row) -> None:
        """Receive the progress between two rows, which is for readers only and not recorded."""

    def message(self, text: str) -> None:
        """Receive one line for the reader."""

    def finish(self, summary: Mapping[str, float | str], status: str) -> None:
        """Receive the outcome of the run, after the last row."""

    def files(self) -> dict[str, int]:
        """Return the name of every file in the run folder that it writes, and its size in bytes without unfinished records."""
        return {}

    def close(self) -> None:
        """Close files and release the terminal."""


def flatten(config: Mapping[str, object]) -> dict[str, bool | int | float | str]:
    """Return the values of a nested config by dotted path, lists as JSON text, without those that are None."""
    found: dict[str, bool | int | float | str] = {}
    for key, value in flat_items(config):
        if isinstance(value, bool | int | float | str):
            found[key] = value
        elif value is not None and not isinstance(value, Mapping):
            found[key] = json.dumps(value, default=str)
    return found
