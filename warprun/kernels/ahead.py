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
from typing import TYPE_CHECKING

from warprun.kernels.cache import KernelFiles, awaited

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


_wanted: dict[Path, tuple[Recipe, str, tuple[Type, ...]]] = {}
"""What the next process will compile, by its file in the cache: the recipe of the module, the kernel, and the types of its arguments."""


def want(module: ModuleType, kernel: str, signature: Sequence[Type]) -> None:
    """Let the next process compile a kernel of a module of `load_module`, unless the cache has it."""
    dispatcher, types = getattr(module, kernel), tuple(signature)
    files = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if not isinstance(files, KernelFiles) or types in dispatcher.overloads:
        return
    path = files.path(dispatcher._cache._index_key(types, dispatcher.targetctx.codegen()))
    if not path.exists():
        _wanted[path] = module.__recipe__, kernel, types


def begin() -> None:
    """Start a process that compiles all that is wanted, in this order."""
    wanted = {path: each for path, each in _wanted.items() if not path.exists()}
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
    awaited.update((path, partial(_wait, process, path)) for path in wanted)


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

    for recipe, kernel, signature in pickle.load(sys.stdin.buffer):
        getattr(load_module(*recipe), kernel).compile(signature)
