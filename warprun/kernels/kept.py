"""Compiled kernels, kept one by one: a change of the functions of one leaves the files of the other kernels of a module.

The file of a kernel follows from all that the kernel depends on: its code, the functions and values that it reads, and the types of its
arguments. Modules whose kernels have nothing else in common share it. What Numba keeps names modules, that of the kernel and those of the
functions in it. Here the module that reads the file stands in the place of all of them.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from contextlib import nullcontext
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, cast

from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import Environment, lookup_environment

from warprun.kernels import pieces, waiting
from warprun.kernels.cache import KernelFiles, text_of
from warprun.kernels.fingerprint import Dispatcher, fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numba.core.codegen import CPUCodegen
    from numba.types import Type

    Index = Callable[[tuple[Type, ...], CPUCodegen], tuple[object, ...]]


def keep(kernel: Dispatcher, module: ModuleType, owner: str) -> None:
    """Let the cache of a kernel of `module`, which belongs to `owner`, be `KernelFiles` with the key of the kernel alone.

    One process at a time compiles it for the same types; the others load it then.
    """
    numbas, compile_here = kernel._cache, kernel.compile
    compiler = "numba.cuda" if "device" in kernel.targetoptions else "numba.core"
    files = KernelFiles(pieces.folder(), kernel.py_func.__name__, partial(_dumps, module, compiler), partial(_loads, module))
    numbas._cache_file, numbas._index_key = files, partial(_key, kernel, module, numbas._index_key)
    if kernel.targetoptions.get("no_cpython_wrapper"):
        # Numba would first import and register all that it compiles with. Only code for Python calls any of that.
        numbas.load_overload = numbas._load_overload

    def compile_alone(signature: tuple[Type, ...]) -> object:
        key = numbas._index_key(signature, kernel.targetctx.codegen())
        told = nullcontext() if os.path.exists(files.path(key)) else waiting.on(f"compiling {kernel.py_func.__name__}", owner)
        # A thread that waits holds the lock of Numba, which one that compiles could need.
        with global_compiler_lock, told, files.alone(key):
            return compile_here(signature)

    kernel.compile = compile_alone


def compile_here(kernel: Dispatcher, kinds: Sequence[Type]) -> bool:
    """Compile a kernel of `load_module` for arguments of these types, unless the cache has it or another process compiles it now.

    Return whether the cache has it then: if not, no other process gets what this one compiles.
    """
    files, key = kernel._cache._cache_file, kernel._cache._index_key(tuple(kinds), kernel.targetctx.codegen())
    if os.path.exists(files.path(key)) or files.is_taken(key):
        return True
    kernel.compile(tuple(kinds))
    return os.path.exists(files.path(key))


def _key(kernel: Dispatcher, module: ModuleType, index: Index, kinds: tuple[Type, ...], codegen: CPUCodegen) -> str:
    """Return a hash of all that a kernel depends on, for arguments of these types; `index` returns Numba's key."""
    try:
        described = [pieces.type_content(kind, {}) for kind in kinds]
        of_kernel = _content(kernel)
    except pieces.UnkeptError:  # a type that has no name but in its module
        described, of_kernel = [str(kind) for kind in kinds], module.__name__
    # Versions and settings of Numba are in the content of the kernel, or in the name of its module.
    return hashlib.sha256(repr((of_kernel, described, index(kinds, codegen)[1:])).encode()).hexdigest()


@cache
def _content(kernel: Dispatcher) -> str:
    """Return a hash of a kernel, whose functions are settled. Raises Unhashable."""
    return fingerprint((text_of(__file__), kernel.py_func.__name__, kernel))


def _dumps(module: ModuleType, compiler: str, value: object) -> bytes:
    """Pickle a compiled kernel of `module` as Numba or numba-cuda does."""

    def place(part: object) -> tuple[object, ...] | None:
        if isinstance(part, Environment):
            return "environment", part.env_name, list(part.consts)
        if isinstance(part, type) and part.__module__ == module.__name__:
            return "class", part.__qualname__
        return ("module",) if isinstance(part, str) and part == module.__name__ else None

    memory = io.BytesIO()
    pickler: pickle.Pickler = import_module(f"{compiler}.serialize").NumbaPickler(memory, 4)
    pickler.persistent_id = place  # type: ignore[method-assign,assignment]
    pickler.dump(value)
    return memory.getvalue()


def _loads(module: ModuleType, content: bytes) -> object:
    """Return a compiled kernel for `module`."""
    return _Reader(module, content).load()


class _Reader(pickle.Unpickler):
    """Reads what `_dumps` has written, for a module."""

    def __init__(self, module: ModuleType, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._module = module

    def persistent_load(self, place: tuple[object, ...]) -> object:
        kind, *more = place
        if kind == "environment":
            name, constants = more
            return lookup_environment(name) or _environment(self._module, cast(str, name), cast("list[object]", constants))
        return getattr(self._module, cast(str, more[0])) if kind == "class" else self._module.__name__


def _environment(module: ModuleType, name: str, constants: list[object]) -> Environment:
    """Return what Numba has in memory of a function of that name: its globals, which only code with Python objects reads, and constants."""
    made = Environment(vars(module))
    made.consts[:], made.env_name = constants, name
    Environment._memo[name] = made
    return made
