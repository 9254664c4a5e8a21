"""Compiles kernels in another process before they are called: within one process, Numba compiles one kernel after the other.

The other process writes to the cache of kernels. This process reads the cache at the first call of a kernel, and waits there if the other
process is still busy with it. If that fails, it compiles the kernel itself, and its own error message counts.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from warprun.kernels import kernel_files

if TYPE_CHECKING:
    from numba.types import Type

    from warprun.kernels.compile import Recipe

PROGRAM = """
import pickle, sys
sys.path[:], parent = pickle.load(sys.stdin.buffer)
from warprun.kernels.ahead import serve
serve(parent)
"""
POLL_S = 0.005


class Wanted(NamedTuple):
    """A kernel, and the types of its arguments."""

    recipe: Recipe
    kernel: str
    signature: tuple[Type, ...]


_wanted: list[tuple[Path, Wanted]] = []
"""What the next process will compile, with the file of each in the cache."""


def want(module: ModuleType, kernel: str, signature: Sequence[Type]) -> None:
    """Let the next process compile a kernel of a module of `load_module`, unless the cache has it."""
    dispatcher, types = getattr(module, kernel), tuple(signature)
    files = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if not isinstance(files, kernel_files.KernelFiles) or types in dispatcher.overloads:
        return
    path = files.path(dispatcher._cache._index_key(types, dispatcher.targetctx.codegen()))
    if not path.exists():
        _wanted.append((path, Wanted(module.__recipe__, kernel, types)))


def begin() -> None:
    """Start a process that compiles all that is wanted, in this order."""
    wanted = {path: each for path, each in _wanted if not path.exists()}
    _wanted.clear()
    try:
        orders = pickle.dumps((list(sys.path), os.getpid())) + pickle.dumps(list(wanted.values()))
    except (pickle.PicklingError, AttributeError, TypeError):  # functions of an agent that another process cannot import
        return
    if not wanted:
        return
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(_end, process)
    assert process.stdin
    with suppress(BrokenPipeError), process.stdin as stream:
        stream.write(orders)
    for path in wanted:
        kernel_files.awaited[path] = partial(_wait, process, path)


def _wait(process: subprocess.Popen[bytes], path: Path) -> None:
    while process.poll() is None and not path.exists():
        time.sleep(POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def serve(parent: int) -> None:
    """Compile what the process `parent` asks for on standard input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
        if os.getppid() != parent:
            return
    from warprun.kernels.compile import load_module

    for wanted in pickle.load(sys.stdin.buffer):
        getattr(load_module(*wanted.recipe), wanted.kernel).compile(wanted.signature)
