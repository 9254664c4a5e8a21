"""The random numbers of `shuffle` as functions for kernels: a draw is a pure function of (seed, number of the draw, index)."""

from __future__ import annotations

from functools import cache

import numpy as np

from warprun.math import cos, log, sqrt
from warprun.state import derived_seed

uint32, float32 = np.uint32, np.float32


def mix(x):
    """Return 32 well-mixed bits of uint32 `x`."""
    x = uint32((x ^ (x >> uint32(16))) * uint32(0x7FEB352D))
    x = uint32((x ^ (x >> uint32(15))) * uint32(0x846CA68B))
    return uint32(x ^ (x >> uint32(16)))


def key_of(seed_low, seed_high, number):
    """Return the key of the `number`-th draw; the halves of the seed are those of `seed_words`."""
    return mix(uint32(mix(uint32(number + seed_low)) ^ seed_high))


def bits_of(key, index):
    """Return random bits `index` of a draw, uint32."""
    return mix(uint32(mix(uint32(uint32(index) ^ key)) + key))


def normal_of(key, index, count):
    """Return standard normal number `index` of `count`: Box and Muller 1958."""
    u = (float32(np.int32(bits_of(key, index) >> uint32(8))) + float32(0.5)) * float32(2.0**-24)
    v = (float32(np.int32(bits_of(key, count + index) >> uint32(8))) + float32(0.5)) * float32(2.0**-24)
    return sqrt(float32(-2.0) * log(u)) * cos(float32(6.283185307179586) * v)


@cache
def seed_words(seed: int) -> tuple[int, int]:
    """Return two words of 32 bits for a seed.

    They are hashed because `key_of` adds the number of a draw: without the hash, draw 5 of seed 0 would be draw 4 of seed 1.
    """
    hashed = derived_seed(seed, "draws")
    return hashed & 0xFFFFFFFF, hashed >> 32
