"""Data of environments: stored reference data, checked to be the published files; numbers and tables that kernels can read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from warprun.errors import UserError, shown
from warprun.files import write_atomic
from warprun.spec import FLOAT32_MAX


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


def problem_of_number(value: object, limit: int = 2**63) -> str:
    """Return why kernels cannot compute with `value`; empty if they can."""
    if not isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating):
        kind = "None" if value is None else f"a {type(value).__name__}"
        return f"must be a numpy array or a number, not {kind} ({shown(value)})"
    if isinstance(value, int | np.integer) and not -limit <= value < limit:
        return f"is {shown(value)}; it must fit into {limit.bit_length()} bits"
    if isinstance(value, float | np.floating) and (np.isnan(value) or FLOAT32_MAX < abs(float(value)) < np.inf):
        return f"is {value}; it must be a number that float32 can hold"
    return ""


def problem_of_array(array: np.ndarray) -> str:
    """Return why kernels cannot read a table; empty if they can."""
    if isinstance(array, np.ma.MaskedArray):
        return "is a MaskedArray; fill it and make a second table of the mask"
    if array.dtype.kind not in "biuf" or array.dtype.itemsize not in ((4, 8) if array.dtype.kind == "f" else (1, 2, 4, 8)):
        return f"has the dtype {array.dtype}; make it float32 or int32"
    if not array.dtype.isnative:
        return f"has the dtype {array.dtype.str}, not in the byte order of this machine; make it float32 or int32 with astype"
    if array.ndim == 0:
        return "is an array without axes; write a number"
    if not array.size:
        return f"is empty; its shape is {array.shape}"
    unfit = np.isnan(array) | (np.isfinite(array) & (np.abs(array) > FLOAT32_MAX)) if array.dtype.kind == "f" else np.zeros(1, bool)
    if unfit.any():
        at = tuple(int(n) for n in np.unravel_index(unfit.argmax(), array.shape))
        return f"has {array[at]} at index {at if len(at) > 1 else at[0]}; it must be a number that float32 can hold"
    return ""
