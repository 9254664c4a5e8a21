"""A shorter start of a command: libraries of torch are loaded while settings are read, and most runs import it without meta kernels."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warprun.config.schema import Config

LOADED_BEFORE = ("decimal", "subprocess", "unicodedata", "uuid", "yaml")
"""Modules with parts in C that reading a config imports: only one library is loaded at a time, so these would wait for those of torch."""
META_KERNELS = "torch._meta_registrations"
"""The module of torch's kernels for meta tensors (`device="meta"`) that are written in Python."""
WITH_META_KERNELS = ("torch._decomp", "torch._dynamo", "torch._prims", "torch._refs")
"""Modules, such as the compiler of torch, that can be imported after that one only."""


def begin_to_load_torch() -> None:
    """Load the libraries of torch in a thread, while this one reads the config, without the lock of Python (GIL)."""
    found = None if "torch" in sys.modules else find_spec("torch")
    if found and found.origin:
        library = Path(found.origin).with_name("lib") / "libtorch_python.so"  # which depends on all others that an import loads
        if library.exists():
            for name in LOADED_BEFORE:
                import_module(name)
            # Not a daemon: the process must not end while a library is being loaded.
            threading.Thread(target=_load, args=(library,), name="warprun-torch").start()


def _load(library: Path) -> None:
    # `ctypes.CDLL(library)` holds the lock of Python meanwhile, a call of a function of C does not. The import of torch meets the same
    # error, if there is one, and says more about it.
    with suppress(AttributeError):
        ctypes.CDLL(None).dlopen(os.fsencode(library), os.RTLD_NOW)


def import_torch(config: Config) -> None:
    """Import torch, without `META_KERNELS` if no code of the user may compute with tensors: they take a large part of its time.

    No code of warprun has meta tensors. The compiler of torch, and whatever else imports `WITH_META_KERNELS`, still imports them first.
    """
    if "torch" in sys.modules or _has_own_code(config):
        return
    with uncollected():
        sys.modules[META_KERNELS] = ModuleType(META_KERNELS)
        try:
            import_module("torch")
        finally:
            del sys.modules[META_KERNELS]
    sys.meta_path.insert(0, _MetaKernels())


def _has_own_code(config: Config) -> bool:
    """Return whether a run has an agent or a network of the user, or an environment that is not made of kernel functions.

    Of a run that continues, the environment is a copy, which is not imported to see what it is.
    """
    from warprun.algorithms import AGENTS
    from warprun.config import environment_copy
    from warprun.config.registry import has_functions
    from warprun.runs.sealing import network_modules

    agent, module = config.agent, config.env.module
    if agent.name not in AGENTS or environment_copy.find(module) is not None or not has_functions(module):
        return True
    return any(True for _ in network_modules(asdict(agent)))


class _MetaKernels(MetaPathFinder, Loader):
    """Imports `META_KERNELS` before the first of `WITH_META_KERNELS`; if that was imported with them, it is not imported again."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in WITH_META_KERNELS:
            return None
        sys.meta_path.remove(self)
        import_module(META_KERNELS)
        if name not in sys.modules:
            return find_spec(name)
        module = sys.modules[name]
        self._own, module.__spec__ = module.__spec__, spec_from_loader(name, self)
        return module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own


@contextmanager
def uncollected() -> Iterator[None]:
    """Do not look for reference cycles within the block, and never among the objects that it leaves: those of imports stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
