"""Records of numbers: a table (CSV) or arrays (.npz), written as episodes are played, so long episodes take no memory."""

from __future__ import annotations

import csv
import io
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np

from warprun.files import atomic
from warprun.runs.recording import Moment

Add: TypeAlias = Callable[[int, Moment], None]
"""add(episode, moment) takes the moments of each episode in the order of its steps."""


@contextmanager
def csv_table(path: Path, varied: Sequence[str]) -> Iterator[Add]:
    """Write a table with a row for every moment and actor; `varied` are the randomized parameters. docs/policies.md has the columns.

    Numbers are the shortest text that gives the same float32. If the context fails, the file keeps its old content. Raises OSError.
    """
    with atomic(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        table: list[csv.DictWriter[str]] = []

        def add(episode: int, moment: Moment) -> None:
            rows = [row for group in moment.observations for row in _rows(episode, moment, group, varied)]
            if not table:
                table.append(csv.DictWriter(text, _columns(rows), restval="", lineterminator="\n"))
                table[0].writeheader()
            table[0].writerows(rows)

        yield add
        text.detach()


FIRST, LAST = ("episode", "step", "group", "actor"), ("reward", "terminated", "truncated")
"""Columns before and after those of the environment."""


def _columns(rows: Sequence[dict[str, str]]) -> list[str]:
    """Return the columns of all groups, in the order of their kinds; groups share columns of the same name."""
    found = dict.fromkeys(name for row in rows for name in row)
    kinds = ("p.", "state.", "obs.", "action")
    return [*FIRST, *(name for kind in kinds for name in found if name.startswith(kind)), *LAST]


def _rows(episode: int, moment: Moment, group: str, varied: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the row of each actor of a group."""
    for actor in range(len(moment.observations[group])):
        row = dict(zip(FIRST, (str(episode), str(moment.step), group, str(actor)), strict=True))
        row |= {f"p.{name}": str(getattr(moment.params, name)) for name in varied}
        for name, values in moment.states.get(group, {}).items():
            row |= _numbered(f"state.{name}", values[actor])
        row |= {f"obs.{n}": str(value) for n, value in enumerate(moment.observations[group][actor])}
        taken = moment.taken
        actions = np.empty(0) if taken is None else taken.actions[group][actor]
        row |= _numbered("action", actions[0] if len(actions) == 1 else actions)
        if taken is not None:
            ends = (str(int(taken.terminated)), str(int(taken.truncated)))
            row |= dict(zip(LAST, (str(taken.rewards[group][actor]), *ends), strict=True))
        yield row


def _numbered(name: str, values: np.ndarray) -> dict[str, str]:
    """Return a number by its name, and the numbers of an array by name.0, name.1, ..."""
    if np.ndim(values) == 0:
        return {name: str(values)}
    return {f"{name}.{n}": str(value) for n, value in enumerate(values)}


@contextmanager
def npz_arrays(path: Path, varied: Sequence[str]) -> Iterator[Add]:
    """Write the arrays of all episodes, one after the other; `varied` are the randomized parameters. docs/policies.md has their names.

    If the context fails, the file keeps its old content. Raises OSError.
    """
    with atomic(path) as file, ExitStack() as stack:
        arrays = _Arrays(lambda: stack.enter_context(tempfile.TemporaryFile(dir=path.parent)), varied)
        yield arrays.add
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, spool in arrays.spools.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    spool.write(member)


class _Arrays:
    """Spools of the moments of episodes, one for each array."""

    def __init__(self, temporary: Callable[[], IO[bytes]], varied: Sequence[str]) -> None:
        """Begin without arrays; `temporary` returns a new file that is removed after its use."""
        self._temporary, self._varied = temporary, varied
        self.spools: dict[str, _Spool] = {}
        self._end = (False, False)

    def add(self, episode: int, moment: Moment) -> None:
        if moment.step == 0:
            for name in self._varied:
                self._keep(f"p/{name}", getattr(moment.params, name))
        for group, observation in moment.observations.items():
            for name, values in moment.states.get(group, {}).items():
                self._keep(f"{group}/state/{name}", values)
            self._keep(f"{group}/obs", observation)
        taken = moment.taken
        if taken is None:
            self._keep("episode/steps", np.int64(moment.step))
            for name, value in zip(("terminated", "truncated"), self._end, strict=True):
                self._keep(f"episode/{name}", np.bool_(value))
            return
        self._end = taken.terminated, taken.truncated
        for group in moment.observations:
            self._keep(f"{group}/action", taken.actions[group])
            self._keep(f"{group}/reward", taken.rewards[group])

    def _keep(self, name: str, value: np.ndarray | np.generic) -> None:
        row = np.asarray(value)
        if name not in self.spools:
            self.spools[name] = _Spool(self._temporary(), row)
        self.spools[name].add(row)


class _Spool:
    """Rows of equal shape in a file without a name, until their number is known."""

    def __init__(self, file: IO[bytes], row: np.ndarray) -> None:
        self._file, self._shape, self._dtype = file, row.shape, row.dtype
        self._rows = 0

    def add(self, row: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(row, self._dtype).tobytes())
        self._rows += 1

    def write(self, file: IO[bytes]) -> None:
        """Write all rows as one array in numpy's format."""
        description = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self._rows, *self._shape)}
        np.lib.format.write_array_header_2_0(file, description)
        self._file.seek(0)
        shutil.copyfileobj(self._file, file)
