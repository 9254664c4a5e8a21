"""The files of compiled kernels: each holds its own SHA-256, so that what is damaged is compiled anew.

Numba unpickles what lies in its cache unseen, and runs it: a flipped bit is an exception of any kind, or a wrong number. So the object
that Numba's cache of a kernel keeps its results in, `_cache_file`, is replaced by `KernelFiles`. It is asked for `load` and `save` only,
by Numba and by numba-cuda alike; a digest beside Numba's own files would instead have to follow an index that several processes rewrite.
Here a file is one compiled signature, is written whole under another name and then renamed, and there is no index.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warprun.errors import UserError

DIGEST_BYTES = 32

_noticed: set[str] = set()


class KernelFiles:
    """What is kept of one kernel: a file for each signature and processor.

    A file is the SHA-256 of what follows and of where it belongs, then the pickled key, by which Numba asks for it, and its result.
    """

    def __init__(self, folder: Path, kernel: str, dumps: Callable[[Any], bytes]) -> None:
        self._folder = folder
        self._kernel = kernel
        self._dumps = dumps
        """Pickles what Numba's target compiles."""

    def load(self, key: Any) -> Any:
        """Return what was compiled for `key`; None if it is not there, or not whole."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            notice(f"cannot read {path}: {error.strerror}; compiling anew")
            return None
        payload = content[DIGEST_BYTES:]
        if content[:DIGEST_BYTES] != self._digest(payload):
            notice(f"a kernel in {self._folder} is damaged; compiling anew", once=str(self._folder))
            return None
        try:
            found, data = pickle.loads(payload)
        except Exception as error:  # whatever the classes raise that it was made with
            notice(f"a kernel in {self._folder} cannot be loaded ({type(error).__name__}); compiling anew", once=str(self._folder))
            return None
        return data if found == key else None

    def save(self, key: Any, data: Any) -> None:
        """Keep what was compiled for `key`."""
        payload = self._dumps((key, data))
        try:
            replace(self._path(key), self._digest(payload) + payload)
        except OSError as error:
            notice(f"cannot keep compiled kernels in {self._folder}: {error.strerror}", once=str(self._folder))

    def flush(self) -> None:
        """Forget what was compiled."""
        for path in self._folder.glob(f"{self._kernel}-*.nbc"):
            path.unlink(missing_ok=True)

    def _path(self, key: Any) -> Path:
        return self._folder / f"{self._kernel}-{hashlib.sha256(str(key).encode()).hexdigest()[:16]}.nbc"

    def _digest(self, payload: bytes) -> bytes:
        return hashlib.sha256(f"{self._folder.name}/{self._kernel}\n".encode() + payload).digest()


class NoFiles:
    """Keeps nothing, in the place of `KernelFiles`."""

    def load(self, key: Any) -> None:
        return None

    def save(self, key: Any, data: Any) -> None:
        return None

    def flush(self) -> None:
        return None


def write_source(path: Path, source: str) -> None:
    """Write the source of a kernel module for people and for Numba's messages, where it does not lie yet, or not whole."""
    wanted = source.encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        there = path.read_bytes() if path.exists() else None
        if there != wanted:
            replace(path, wanted)
    except OSError as error:
        raise UserError(
            f"cannot write compiled kernels to {path.parent}: {error.strerror}; set WARPRUN_CACHE_DIR to a writable folder"
        ) from None
    if there not in (None, wanted):
        notice(f"{path} was damaged; it is written anew", once=str(path.parent))


def replace(path: Path, content: bytes) -> None:
    """Write a file whole, or leave what was there."""
    temporary = path.with_suffix(f".{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def notice(text: str, once: str = "") -> None:
    """Tell a person something in a line, a thing called `once` only once."""
    if once not in _noticed:
        print(f"warning: kernels: {text}", file=sys.stderr, flush=True)
    _noticed.update({once} - {""})
