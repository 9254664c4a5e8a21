"""Store reference data of environments, and check that they are the published files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from warprun.errors import UserError
from warprun.files import write_atomic


def folder(name: str) -> Path:
    """Return the folder of the data set `name`: in WARPRUN_DATA_DIR, else in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "warprun" / "data"
    return Path(os.environ.get("WARPRUN_DATA_DIR", default)) / name


def check(path: Path, sha256: str) -> bytes:
    """Return the content of a file whose hash begins with `sha256`. Raises UserError if it is missing or altered."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    require(content, sha256, str(path))
    return content


def require(content: bytes, sha256: str, where: str) -> None:
    """Raise UserError unless the hash of `content` begins with `sha256`."""
    found = hashlib.sha256(content).hexdigest()
    if not found.startswith(sha256):
        raise UserError(f"{where} is not the published file: its sha256 is {found[:16]}..., expected {sha256[:16]}...")


def keep(path: Path, content: bytes) -> None:
    """Write a file of the cache atomically. Raises UserError if the folder is not writable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; set WARPRUN_DATA_DIR to a writable folder") from None
