"""Reading .npz files that somebody else may have made, one array at a time. No pickle, no torch."""

from __future__ import annotations

import math
import zipfile
import zlib

import numpy as np

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


def read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read an array; zipfile compares its checksum. Raises the errors of BROKEN, and OSError.

    Nothing is allocated for an array whose header does not fit the size of `member`.
    """
    form = np.lib.format
    with archive.open(member) as file:
        version = form.read_magic(file)
        shape, _, dtype = (form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0)(file)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
            raise ValueError("the array has another size")
    with archive.open(member) as file:
        array: np.ndarray = form.read_array(file, allow_pickle=False)
    return array
