"""A process that steps a slice of the environments, on command. No torch.

It reads commands of 17 bytes from one pipe (a letter, the row, the number of the step) and answers through another one: a dot, or an
exclamation mark, the length of a JSON text in 4 bytes, and the text. Everything else goes through shared memory. It ends if the pipe of
commands is closed, and at once if its parent ends: the kernel then sends it SIGIO.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import numpy as np

from warprun.simulation.external.recipe import Recipe
from warprun.simulation.external.shared import SharedArrays
from warprun.simulation.external.slice import Slice
from warprun.simulation.external.sources import EnvironmentFailed, Singles, Vectorized

COMMAND = struct.Struct("<cqq")
DONE, FAILED = b".", b"!"
RESET, STEP, SAVE, LOAD = b"r", b"s", b"g", b"p"
IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""Signals that a terminal or a batch system sends to every process of a run: the parent decides."""


class Job(TypedDict):
    """What a worker does."""

    recipe: dict[str, Any]
    """Fields of a `Recipe`."""
    worker: int
    """Its number."""
    begin: int
    """The first of its environments."""
    end: int
    time_limit: int | None
    """Steps that a slice counts; None if environments count themselves."""
    choices: list[int]
    """Number of choices of each component of a masked action."""
    replaces: bool


def main(commands: int, answers: int, life: int, memory: int, length: int) -> None:
    """Serve a simulator; the arguments are descriptors, and the length of the job, a JSON text, in the pipe `commands`."""
    for name in IGNORED:
        # Not SIG_IGN, which programs that an environment starts would inherit.
        signal.signal(getattr(signal, name), lambda number, frame: None)
        signal.siginterrupt(getattr(signal, name), False)
    end_with_parent(life)
    layout, job = json.loads(_read(commands, length))
    try:
        part = make_slice(SharedArrays(layout, memory).arrays, job)
    except EnvironmentFailed as error:
        _fail(answers, error)
        return
    os.write(answers, DONE)
    serve(commands, answers, part)
    with contextlib.suppress(Exception):
        part.source.close()


def serve(commands: int, answers: int, part: Slice) -> None:
    """Execute commands until their pipe is closed or one fails."""
    does: dict[bytes, Callable[[int, int], None]] = {
        RESET: lambda row, step: part.reset(),
        STEP: part.step,
        SAVE: lambda row, step: part.save(),
        LOAD: lambda row, step: part.load(),
    }
    while command := os.read(commands, COMMAND.size):
        name, row, step = COMMAND.unpack(command)
        try:
            does[name](row, step)
        except EnvironmentFailed as error:
            _fail(answers, error)
            return
        os.write(answers, DONE)


def end_with_parent(life: int) -> None:
    """Let the kernel end this process, whatever it does then, when the other end of the pipe `life` is closed."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # it was closed before
        os._exit(1)


def make_slice(arrays: Mapping[str, np.ndarray], job: Job) -> Slice:
    """Make the environments of a job. Raises EnvironmentFailed."""
    recipe, begin, end = Recipe(**job["recipe"]), job["begin"], job["end"]
    at = arrays["at"][job["worker"]]
    source = (Vectorized if recipe.vector else Singles)(recipe, begin, end - begin, at)
    return Slice(source, arrays, begin, end, time_limit=job["time_limit"], choices=tuple(job["choices"]), replaces=job["replaces"])


def _read(file: int, length: int) -> bytes:
    """Return `length` bytes of a pipe, or fewer if it is closed before."""
    found = b""
    while len(found) < length and (part := os.read(file, length - len(found))):
        found += part
    return found


def _fail(answers: int, error: EnvironmentFailed) -> None:
    text = json.dumps({"environment": error.environment, "action": error.action, "reason": error.reason}).encode()
    os.write(answers, FAILED + struct.pack("<I", len(text)) + text)
