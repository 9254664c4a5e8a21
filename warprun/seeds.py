"""Seeds for the parts of a run. No numba, no torch."""

from __future__ import annotations

import hashlib


def derived_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed that is a hash of `seed` and a purpose, such as ("evaluation",) or ("group", 2).

    Seeds that are added or shifted overlap: draw 5 of seed 0 would be draw 4 of seed 1. A hash keeps neighbouring seeds, and the purposes
    of one seed, apart. The result fits into an int64, as torch wants it.
    """
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
