"""The files of compiled kernels. Each holds its SHA-256; a damaged one is ignored and its kernel compiled again.

Numba unpickles and runs its cache files unchecked: a flipped bit raises an arbitrary exception or gives a wrong number.
So `KernelFiles` replaces `_cache_file`, the object in which Numba's cache of a kernel stores its results. Numba and
numba-cuda call only its `load` and `save`, here while the kernel is compiled within `alone`. A file holds one compiled
signature and is written to a temporary file and renamed, and there is no index, so several processes can share a
folder. Whether a file exists is asked by `os.path.exists`: `Path.exists` raises where a folder may not be entered.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeAlias, cast

from filelock import FileLock, Timeout

Key: TypeAlias = str
"""A hash of all that compiled code depends on."""

DIGEST_BYTES = 32
WAIT_S = 600.0
"""Longest time to wait for another process that compiles the same kernel."""

awaited: dict[Path, Callable[[], None]] = {}
"""Files that another process is about to write -> a function that waits for that, see `ahead`."""
meanwhile: list[Callable[[], None]] = []
"""What this process does before it waits for another one that compiles, see `ahead`."""
_noticed: set[str] = set()


def cache_root() -> Path:
    """Return the folder of compiled kernels: WARPRUN_CACHE_DIR, else the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "warprun").expanduser()
    return Path(os.environ.get("WARPRUN_CACHE_DIR", default), "kernels")


@cache
def text_of(file: str) -> bytes:
    """Return the hash of a file: another version of a module keeps other files than this one."""
    return hashlib.sha256(Path(file).read_bytes()).digest()


def module_name(name: str) -> str:
    """Return the name of a module of kernels as it begins the name of its folder, and is part of an identifier."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)[:64]


class KernelFiles:
    """The cache of one kernel: one file for each key.

    A file is a SHA-256 followed by a pickled (key, compiled result). The digest covers the pickle and the names of folder and kernel.
    """

    def __init__(
        self,
        folder: Path,
        kernel: str,
        dumps: Callable[[tuple[Key, object]], bytes] = pickle.dumps,
        loads: Callable[[bytes], object] = pickle.loads,
    ) -> None:
        self._folder = folder
        self._kernel = kernel
        self._dumps, self._loads = dumps, loads

    @contextmanager
    def alone(self, key: Key) -> Iterator[None]:
        """Let no other process on this machine compile for `key` meanwhile; wait until none does. Those that waited find the file.

        The operating system gives up the lock of a process that dies. On a file system without locks, and where another process takes
        longer than `WAIT_S`, this one compiles, too; the files stay whole.
        """
        path = self.path(key)
        if meanwhile and self.is_taken(key):
            meanwhile[-1]()
        awaited.pop(path, lambda: None)()
        lock = FileLock(path.with_suffix(".lock"), timeout=WAIT_S)
        try:
            if not os.path.exists(path):
                lock.acquire()
        except Timeout:
            notice(f"another process has compiled {path.stem} for {WAIT_S:.0f} s; compiling it here, too")
        except (OSError, NotImplementedError):  # a folder that cannot be written to, a file system without locks
            pass
        try:
            yield
        finally:
            lock.release()

    def is_taken(self, key: Key) -> bool:
        """Return whether another process compiles for `key` at this moment, as far as can be known."""
        lock = FileLock(self.path(key).with_suffix(".lock"), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            return True
        except (OSError, NotImplementedError):
            return False
        lock.release()
        return False

    def load(self, key: Key) -> object:
        """Return the compiled result for `key`; None if there is no file, or a damaged one."""
        path = self.path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            notice(f"cannot read compiled kernels in {self._folder}: {error.strerror}; compiling anew", once=str(self._folder))
            return None
        payload = content[DIGEST_BYTES:]
        if content[:DIGEST_BYTES] != self._digest(payload):
            notice(f"a kernel in {self._folder} is damaged; compiling anew", once=str(self._folder))
            return None
        try:
            found, data = cast("tuple[Key, object]", self._loads(payload))
        except Exception as error:  # unpickling runs arbitrary classes, which may raise anything
            notice(f"a kernel in {self._folder} cannot be loaded ({type(error).__name__}); compiling anew", once=str(self._folder))
            return None
        return data if found == key else None

    def save(self, key: Key, data: object) -> None:
        """Store the compiled result for `key`."""
        payload = self._dumps((key, data))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace(self.path(key), self._digest(payload) + payload)
        except OSError as error:
            notice(f"cannot keep compiled kernels in {self._folder}: {error.strerror}", once=str(self._folder))

    def path(self, key: Key) -> Path:
        """Return the file of a signature."""
        return self._folder / f"{self._kernel}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.nbc"

    def _digest(self, payload: bytes) -> bytes:
        return hashlib.sha256(f"{self._folder.name}/{self._kernel}\n".encode() + payload).digest()


def without_comments(source: str) -> str:
    """Return a source without its comment lines. They name lines of the user's files, and moving a function must not change its key."""
    return "".join(line for line in source.splitlines(keepends=True) if not line.lstrip().startswith("#"))


def write_source(path: Path, source: str) -> None:
    """Write the source of a kernel module, for reading and for Numba's messages, unless the file has it already. Raises OSError."""
    wanted = source.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    there = path.read_bytes() if os.path.exists(path) else None
    if there != wanted:
        replace(path, wanted)
    if there is not None and without_comments(there.decode(errors="replace")) != without_comments(source):
        notice(f"{path} was damaged; it is written anew", once=str(path.parent))


@cache
def scratch() -> Path:
    """Return a folder for the kernel sources of this process only, which is removed at its end. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix="warprun-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def replace(path: Path, content: bytes) -> None:
    """Write a file atomically: on an error the old content stays. Raises OSError."""
    temporary = path.with_suffix(f".{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def notice(text: str, once: str = "") -> None:
    """Print a one-line warning to stderr; warnings with the same non-empty `once` are printed only once."""
    if once not in _noticed:
        print(f"warning: kernels: {text}", file=sys.stderr, flush=True)
    _noticed.update({once} - {""})
