"""Load torch and numba in less time: more than half of the time from a short command to its end is their import."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path


def begin_to_load_torch() -> None:
    """Load the library of torch in a thread, while this one reads the config: that takes 0.2 s and no lock of Python (GIL)."""
    found = find_spec("torch")
    if found and found.origin:
        library = Path(found.origin).with_name("lib") / "libtorch_cpu.so"
        if library.exists():
            # Not a daemon: the process must not end while a library is being loaded.
            threading.Thread(target=_load, args=(library,), name="warprun-torch").start()


def _load(library: Path) -> None:
    with suppress(OSError):  # the import of torch finds the same error, and says more about it
        ctypes.CDLL(str(library))


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
