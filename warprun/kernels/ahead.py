"""Compiles kernels in another process before they are called: within one process, Numba compiles one kernel after the other.

The other process writes to the cache of kernels. It takes what is wanted from the front of the list; this process, once its own kernels are
compiled, from the back (`share`). It reads the cache at the first call of a kernel, and waits there if the other process is still busy with
it. If that fails, it compiles the kernel itself, and its own error message counts.
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
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from warprun.kernels.cache import KernelFiles, awaited, cache_root, module_name

if TYPE_CHECKING:
    from numba.types import Type

    from warprun.kernels.compile import Recipe

PROGRAM = """
import pickle, sys
sys.path[:], parent, modules = pickle.load(sys.stdin.buffer)
from warprun.kernels.ahead import serve
serve(parent, modules)
"""
POLL_S = 0.005


class Order(NamedTuple):
    """A kernel to compile."""

    recipe: Recipe
    """Of its module."""
    kernel: str
    types: tuple[Type, ...]
    """Of its arguments."""


_wanted: dict[Path, tuple[ModuleType, Order]] = {}
"""What the next process will compile, by its file in the cache, with the module that this process has."""
_begun: dict[Path, tuple[ModuleType, Order]] = {}
"""What a process has been asked to compile."""
_waiting: list[subprocess.Popen[bytes]] = []
"""A process that waits for orders."""


def expect(name: str, modules: Sequence[str]) -> None:
    """Start the process early if the cache has no kernels of `name`: it imports Numba and `modules` while this process does, too."""
    compiles = os.environ.get("NUMBA_DISABLE_JIT") != "1"
    if compiles and not _waiting and not any(cache_root().glob(f"{module_name(name)}-*")):
        _waiting.append(_start(modules))


def want(module: ModuleType, kernel: str, signature: Sequence[Type]) -> None:
    """Let the next process compile a kernel of a module of `load_module`, unless the cache has it."""
    dispatcher, types = getattr(module, kernel), tuple(signature)
    files = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if not isinstance(files, KernelFiles) or types in dispatcher.overloads:
        return
    path = files.path(dispatcher._cache._index_key(types, dispatcher.targetctx.codegen()))
    if not path.exists():
        _wanted[path] = module, Order(module.__recipe__, kernel, types)


def begin() -> None:
    """Let a process compile all that is wanted, in this order."""
    wanted = {path: each for path, each in _wanted.items() if not path.exists()}
    _wanted.clear()
    _begun.clear()
    try:
        orders = pickle.dumps([order for _, order in wanted.values()])
    except (pickle.PicklingError, AttributeError, TypeError):  # functions of an agent that another process cannot import
        wanted = {}
    if not wanted:
        dismiss()
        return
    process = _waiting.pop() if _waiting else _start(())
    assert process.stdin
    with suppress(BrokenPipeError), process.stdin as stream:
        stream.write(orders)
    _begun.update(wanted)
    awaited.update((path, partial(_wait, process, path)) for path in wanted)


def dismiss() -> None:
    """End the process that waits for orders, and forget what is wanted: the run that expected it has ended, perhaps before it was built."""
    _wanted.clear()
    _begun.clear()
    while _waiting:
        _end(_waiting.pop())


def share() -> None:
    """Compile here, from the end of the list, what the process of `begin` has not come to."""
    while _begun:
        path, (module, order) = _begun.popitem()
        dispatcher = getattr(module, order.kernel)
        files, key = dispatcher._cache._cache_file, dispatcher._cache._index_key(order.types, dispatcher.targetctx.codegen())
        if not path.exists() and not files.is_taken(key):
            awaited.pop(path, None)
            dispatcher.compile(order.types)


def _start(modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """Return a new process, which imports `modules` and waits for orders."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(_end, process)
    assert process.stdin
    with suppress(BrokenPipeError):
        process.stdin.write(pickle.dumps((list(sys.path), os.getpid(), tuple(modules))))
        process.stdin.flush()
    return process


def _wait(process: subprocess.Popen[bytes], path: Path) -> None:
    while process.poll() is None and not path.exists():
        time.sleep(POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def serve(parent: int, modules: Sequence[str]) -> None:
    """Import `modules`, and compile what the process `parent` asks for on standard input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
        if os.getppid() != parent:
            return
    import numba

    from warprun.kernels.compile import load_module

    for module in modules:
        import_module(module)
    numba.njit("int64(int64)")(lambda number: number + 1)  # the first compilation imports the rest of Numba
    for recipe, kernel, types in pickle.load(sys.stdin.buffer):
        dispatcher = getattr(load_module(*recipe), kernel)
        key = dispatcher._cache._index_key(types, dispatcher.targetctx.codegen())
        if not dispatcher._cache._cache_file.is_taken(key):
            dispatcher.compile(types)
