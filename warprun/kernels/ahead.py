"""Compiles kernels in other processes before they are called: within one process, Numba compiles one kernel after the other.

A process that is started early (`expect`) first compiles what follows from the config, the kernels of the environment,
while this one imports torch. Then it gets orders.

The other processes write to the cache of kernels. They take what is wanted from the front of the list; this process, once its own kernels
are compiled, from the back (`share`). It reads the cache at the first call of a kernel, and waits there if another process is still busy
with it. If that fails, it compiles the kernel itself, and its own error message counts. The other processes use no GPU: they compile CUDA
kernels for that of this process (`without_gpu`).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from glob import glob
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from warprun.kernels.cache import KernelFiles, awaited, cache_root, meanwhile, module_name
from warprun.kernels.made import dumps
from warprun.kernels.without_gpu import compiling_for

if TYPE_CHECKING:
    from numba.types import Type

    from warprun.kernels.compile import Recipe

PROGRAM = """
import gc, pickle, sys
gc.disable()
sys.path[:], *given = pickle.load(sys.stdin.buffer)
from warprun.kernels.ahead import serve
serve(*given)
gc.freeze()
"""
"""Nothing looks for reference cycles in it, not even at its end: that takes a tenth of its time, and it ends soon."""
POLL_S = 0.005
MOST_FOR_GPU = 3
"""Most processes beside this one that compile CUDA kernels: they are fewer than on CPU, and each takes longer."""


class Early(NamedTuple):
    """A function that a process calls before it gets orders."""

    module: str
    function: str
    argument: object


class Order(NamedTuple):
    """A kernel to compile."""

    recipe: Recipe
    """Of its module."""
    kernel: str
    types: tuple[Type, ...]
    """Of its arguments."""
    gpu: tuple[object, tuple[int, int]] | None
    """Version of the CUDA runtime and compute capability, for CUDA kernels."""


_wanted: dict[Path, tuple[ModuleType, Order]] = {}
"""What the next processes will compile, by its file in the cache, with the module that this process has."""
_begun: dict[Path, tuple[ModuleType, Order]] = {}
"""What processes have been asked to compile."""
_waiting: list[subprocess.Popen[bytes]] = []
"""Processes that wait for orders."""
_early: list[subprocess.Popen[bytes]] = []
"""The one of them that has something to do before."""


def helpers(threads: int, on_gpu: bool) -> int:
    """Return how many processes compile kernels beside this one, in a run that uses so many threads of the CPU."""
    return min(threads - 1, MOST_FOR_GPU if on_gpu else 1)


def expect(name: str, modules: Sequence[str], processes: int = 1, source: Path | None = None, early: Early | None = None) -> None:
    """Start processes early if the cache has no kernels of `name`, or only some older than its sources, `source` and the files beside it.

    They import Numba and `modules` while this process does, too. The first one does `early` before, and imports the modules after it.
    """
    if os.environ.get("NUMBA_DISABLE_JIT") == "1" or _waiting:
        return
    kept = glob(f"{module_name(name)}-*", root_dir=cache_root())
    newest = max((_changed_s(cache_root() / each) for each in kept), default=None)
    changed = source is not None and newest is not None and any(_changed_s(each) > newest for each in source.parent.glob("*.py"))
    first = _written(early) if early and (newest is None or changed) else b""
    _early[:] = [_start(modules, first)] if first else []
    _waiting.extend(_early)
    if newest is None:
        _waiting.extend(_start(modules) for _ in range(processes - len(_early)))


def _changed_s(path: Path) -> float:
    """Return when a file or folder was changed; 0 if it is gone, such as what a lock of an editor points to."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def want(module: ModuleType, kernel: str, signature: Sequence[Type]) -> None:
    """Let the next processes compile a kernel of a module of `load_module`, unless the cache has it."""
    dispatcher, types = getattr(module, kernel), tuple(signature)
    files = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if not isinstance(files, KernelFiles) or types in dispatcher.overloads:
        return
    codegen = dispatcher.targetctx.codegen()
    path = files.path(dispatcher._cache._index_key(types, codegen))
    if not os.path.exists(path):
        gpu = codegen.magic_tuple() if "device" in dispatcher.targetoptions else None
        _wanted[path] = module, Order(module.__recipe__, kernel, types, gpu)


def begin(processes: int = 1) -> None:
    """Let up to so many processes compile all that is wanted, in this order; each begins at another place."""
    wanted = {path: each for path, each in _wanted.items() if not os.path.exists(path)}
    _wanted.clear()
    _begun.clear()
    written = {path: _written(order) for path, (_, order) in wanted.items()}
    orders = [order for order in written.values() if order]
    wanted = {path: each for path, each in wanted.items() if written[path]}
    begun = [_waiting.pop() if _waiting else _start(()) for _ in range(min(processes, len(orders)))]
    for process in set(_waiting).intersection(_early):  # it goes on, and ends without an order
        _waiting.remove(process)
        _send(process, [])
    dismiss()
    for place, process in enumerate(begun):
        # One that still does something else reads nothing before its end, and a pipe holds few orders.
        threading.Thread(target=_send, args=(process, orders[place:] + orders[:place]), daemon=True).start()
    _begun.update(wanted)
    awaited.update((path, partial(_wait, begun, path)) for path in wanted)
    meanwhile[:] = [share]


def _send(process: subprocess.Popen[bytes], orders: list[bytes]) -> None:
    assert process.stdin
    with suppress(BrokenPipeError), process.stdin as stream:
        pickle.dump(orders, stream)


def _written(order: Order | Early) -> bytes:
    """Return a pickled order; nothing for one with functions or settings of an agent that another process cannot import."""
    try:
        return dumps(order)
    except (pickle.PicklingError, AttributeError, TypeError):
        return b""


def dismiss() -> None:
    """End the processes that wait for orders, and forget what is wanted: the run that expected them has ended, perhaps not yet built."""
    _wanted.clear()
    _begun.clear()
    meanwhile.clear()
    while _waiting:
        _end(_waiting.pop())


def share() -> None:
    """Compile here, from the end of the list, what the processes of `begin` have not come to; the first call tells an error."""
    from numba.core.errors import NumbaError  # processes are started before Numba is imported

    while _begun:
        path, (module, order) = _begun.popitem()
        dispatcher = getattr(module, order.kernel)
        files, key = dispatcher._cache._cache_file, dispatcher._cache._index_key(order.types, dispatcher.targetctx.codegen())
        if not os.path.exists(path) and not files.is_taken(key):
            awaited.pop(path, None)
            with suppress(NumbaError):
                dispatcher.compile(order.types)


def _start(modules: Sequence[str], early: bytes = b"") -> subprocess.Popen[bytes]:
    """Return a new process, which does `early`, a pickled `Early`, imports `modules` and waits for orders."""
    quiet, without_gpus = subprocess.DEVNULL, os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", PROGRAM]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=without_gpus)
    atexit.register(_end, process)
    assert process.stdin
    with suppress(BrokenPipeError):
        process.stdin.write(pickle.dumps((list(sys.path), os.getpid(), tuple(modules), early)))
        process.stdin.flush()
    return process


def _wait(processes: Sequence[subprocess.Popen[bytes]], path: Path) -> None:
    while not os.path.exists(path) and any(process.poll() is None for process in processes):
        time.sleep(POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def serve(parent: int, modules: Sequence[str], early: bytes) -> None:
    """Do `early`, import `modules`, and compile what the process `parent` asks for on standard input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
        if os.getppid() != parent:
            return
    import numba

    from warprun.kernels.compile import load_module
    from warprun.kernels.kept import compile_here

    orders: list[bytes] = []
    if early:
        with suppress(Exception):  # of code of the user, which the process that calls it reports
            first: Early = pickle.loads(early)
            getattr(import_module(first.module), first.function)(first.argument)
        orders = pickle.load(sys.stdin.buffer)
        if not orders:
            return
    for module in modules:
        import_module(module)
    numba.njit("int64(int64)")(lambda number: number + 1)  # the first compilation imports the rest of Numba
    for order in orders or pickle.load(sys.stdin.buffer):
        with suppress(Exception):  # the process that wants the kernel compiles it itself, and tells its own error
            recipe, kernel, types, gpu = pickle.loads(order)
            with compiling_for(*gpu) if gpu else nullcontext():
                if not compile_here(getattr(load_module(*recipe), kernel), types):
                    return
