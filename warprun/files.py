"""Writing files that are complete after a crash at any point, and reading files that somebody else may have made, within limits.

A file is safe from a crash of its process once it is written, and from a power failure once it is on the disk. A small file takes
milliseconds to get there, and many take hardly longer than one, so what belongs together is written to the disk together (`to_disk`).
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from warprun.errors import UserError, printable

if TYPE_CHECKING:
    import numpy as np

MAX_JSON_BYTES = 1 << 20
"""Size limit of a JSON file in a run folder."""
MAX_JSON_VALUES = 16 << 20
"""Most values of a JSON text; each takes some 64 bytes of memory."""
MAX_FILES = 10_000
"""Most files in a folder that somebody else may have made and that is written to."""
PIECE_BYTES = 1 << 20
"""Bytes of an array that are read at a time."""
MOST_SYNCS = 16
"""Files that are written to the disk at a time."""
BROKEN = (
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    OverflowError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What zipfile and numpy raise for broken files."""


def refuse_links(folder: Path) -> None:
    """Raise UserError if a folder has links or special files, because what is written to them lands elsewhere.

    More than MAX_FILES files are refused too. A folder that is a link is refused; one that does not exist is not. Files with several names
    (hard links) count as links.
    """
    paths = [folder]
    try:
        if folder.is_dir() and not folder.is_symlink():
            paths += itertools.islice(folder.rglob("*"), MAX_FILES)
        for path in paths:
            found = path.lstat() if os.path.lexists(path) else None
            mode = found.st_mode if found else 0
            if found and not stat.S_ISDIR(mode) and not (stat.S_ISREG(mode) and found.st_nlink == 1 and path != folder):
                raise UserError(f"{printable(path)} is a link or no regular file, and the command would write to it; remove it")
    except OSError as error:
        raise UserError(f"cannot read {printable(folder)}: {error.strerror}") from None
    if len(paths) > MAX_FILES:
        raise UserError(f"{printable(folder)} has more than {MAX_FILES:,} files; remove those that no run has made")


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and its parents; return those that were not there, innermost first. Raises OSError, and then leaves none of them."""
    made = [place for place in (folder, *folder.parents) if not os.path.exists(place)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(error.errno, "it is a file, and a folder is needed", str(folder)) from None
    except BaseException:
        remove_empty(made)
        raise
    return made


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove `folders`, in this order, but those that are not empty or not there."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """Replace a file with what the context writes. After a crash at any point it has either its old or its new content, complete.

    After a power failure, too, but a new file may be missing or empty until it is on the disk, see `to_disk`. Raises OSError; the file
    then has its old content.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a crash
        with open(temporary, "xb") as file:  # which follows no link
            yield file
            file.flush()
            if os.path.lexists(path):
                sync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        # On a full disk the unfinished file takes the space of the next try.
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a failed write names no file
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file by `data`, see `atomic`. Raises OSError."""
    with atomic(path) as file:
        file.write(data)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raises OSError, and UserError for a pipe, a device or a folder: a reader could wait for ever."""
    try:
        # Before it is opened, because opening some devices has effects, and after, because the file may have been replaced.
        _require_regular(path, os.stat(path))
        # Without O_NONBLOCK the opening of a pipe waits for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError:  # a zero byte
        raise UserError(f"{printable(path)} is no file name") from None
    try:
        _require_regular(path, os.fstat(handle))
    except UserError:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def _require_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{printable(path)} is not a regular file")


def read_limited(path: Path, limit_bytes: int) -> bytes:
    """Read a regular file of at most `limit_bytes`. Raises UserError for anything else: it neither waits nor reads more than the limit.

    Links are followed. Raises FileNotFoundError, and no other OSError.
    """
    try:
        with open_regular(path) as file:
            # The size that the file system reports is not a limit: files of /proc report 0. `read` allocates what it is asked for.
            content = bytearray()
            while len(content) <= limit_bytes and (part := file.read(min(1 << 20, limit_bytes + 1 - len(content)))):
                content += part
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    except OSError as error:
        raise UserError(f"cannot read {printable(path)}: {error.strerror}") from None
    if len(content) > limit_bytes:
        raise UserError(f"cannot read {printable(path)}: it is larger than {limit_bytes:,} bytes")
    return bytes(content)


def read_end(path: Path, most_bytes: int) -> bytes:
    """Return the last `most_bytes` of a regular file, or less. Raises OSError and UserError."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes)


def read_json(path: Path, limit_bytes: int = MAX_JSON_BYTES) -> object:
    """Read a JSON file of at most `limit_bytes`. Raises UserError, and FileNotFoundError."""
    content = read_limited(path, limit_bytes)
    try:
        return parse_json(content)
    except ValueError:
        raise UserError(f"cannot read {printable(path)}: it is damaged, or it is not JSON") from None


def parse_json(text: bytes) -> object:
    """Parse JSON that somebody else may have written.

    Raises ValueError for anything else: also for NaN, infinity, whole numbers of more than 20 characters, and for what takes much more
    memory than its text: lists and sections inside each other beyond the depth of Python's stack, or more than MAX_JSON_VALUES values.
    """
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MAX_JSON_VALUES:
        raise ValueError("it has too many values")
    try:
        found: object = _DECODER.decode(text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


def read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read an array of an .npz file; zipfile compares its checksum. Raises the errors of BROKEN, and OSError.

    Nothing is allocated for an array whose header does not fit the size of `member`.
    """
    import numpy as np  # most commands that read files need none

    with archive.open(member) as file:
        begin = file.read(10)
        shape, by_columns, dtype = _array_header(begin + file.read(int.from_bytes(begin[8:], "little")))
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
            raise ValueError("the array has another size")
        array = np.empty(math.prod(shape), dtype)
        content = array.view(np.uint8).data
        for first in range(0, len(content), PIECE_BYTES):
            piece = file.read(len(content[first : first + PIECE_BYTES]))
            content[first : first + len(piece)] = piece
            if len(piece) < len(content[first : first + PIECE_BYTES]):
                raise EOFError("the array is shorter than its header says")
    return array.reshape(shape, order="F" if by_columns else "C")


@lru_cache(maxsize=512)
def _array_header(text: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, order and dtype of what a .npy file begins with; arrays of other files of a run or a sweep have the same ones."""
    import numpy as np

    file = BytesIO(text)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("the array has a header of another version")
    found: tuple[tuple[int, ...], bool, np.dtype] = np.lib.format.read_array_header_1_0(file)
    return found


def _whole(text: str) -> int:
    if len(text) > 20:  # 64 bits; a whole number of any length is a surprise to everything that calculates with it
        raise ValueError("a whole number has more than 64 bits")
    return int(text)


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is not finite")
    return value


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_real, parse_constant=_real)


def sync(handle: int) -> None:
    """Write a file or a folder to the disk, so that it survives a power failure. Raises OSError."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS, whose fsync leaves data in the cache of the disk
        with suppress(OSError):  # not on every file system
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
    os.fsync(handle)


def to_disk(paths: Iterable[str | Path]) -> None:
    """Write files and folders to the disk, all at once. Raises OSError, but not for what is gone or cannot be read."""
    paths = list(paths)
    try:
        for _ in _threads().map(_to_disk, paths):
            pass
    except RuntimeError:  # the system gives no more threads
        for path in paths:
            _to_disk(path)


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads that wait for the disk: to start them for each short run takes as long as the disk does."""
    return ThreadPoolExecutor(MOST_SYNCS, "warprun-disk")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a forked process has none of them


def all_to_disk(folder: Path) -> None:
    """Write a folder, its own name, and all files and folders below it to the disk, but not what links lead to. Raises OSError."""
    found = [os.path.join(place, name) for place, folders, files in os.walk(folder) for name in (*folders, *files)]
    to_disk((folder.parent, folder, *(path for path in found if not os.path.islink(path))))


def _to_disk(path: str | Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO, errno.EACCES):  # it was temporary, or is no file of warprun
            return
        raise
    try:
        sync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Some network file systems cannot sync folders, and no system can sync a pipe.
            error.filename = str(path)
            raise
    finally:
        os.close(handle)
