"""Derive seeds for the parts of a run. Imports neither numba nor torch."""

from __future__ import annotations

import hashlib


def derived_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed that is a hash of `seed` and a purpose, such as ("evaluation",) or ("group", 2).

    Adding or shifting seeds makes streams overlap: draw 5 of seed 0 would be draw 4 of seed 1. A hash separates neighbouring seeds and
    the purposes of one seed. The result fits into an int64, as torch requires.
    """
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
