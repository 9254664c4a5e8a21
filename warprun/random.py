"""Provide counter-based random draws for environment functions: Philox4x32-10.

A draw is a pure function of (seed, purpose, environment, step, actor, index). Number the draws of one function call 0, 1, 2, ...
The same index gives the same number again. Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from typing import NamedTuple

import numpy as np

from warprun.math import bits as float_bits
from warprun.math import cos, from_bits, log, sqrt, where

uint32 = np.uint32
uint64 = np.uint64
float32 = np.float32


class Rng(NamedTuple):
    """The random stream of one function call: the Philox key (seed) and three of the four counter words."""

    seed_low: uint32
    seed_high: uint32
    environment: uint32
    step: uint32
    source: uint32
    """purpose << 24 | actor"""


# Purposes are the highest byte of `source`, so different uses of randomness have different streams.
RESET, STEP, ACTION, VARIATION, EXPLORATION = 0, 1, 2, 3, 4


def _round(c0, c1, c2, c3, k0, k1):
    product0 = uint64(c0) * uint64(0xD2511F53)
    product1 = uint64(c2) * uint64(0xCD9E8D57)
    high0, high1 = uint32(product0 >> uint64(32)), uint32(product1 >> uint64(32))
    return uint32(high1 ^ c1 ^ k0), _low(c2, 0x100000000 - 0xCD9E8D57), uint32(high0 ^ c3 ^ k1), _low(c0, 0x100000000 - 0xD2511F53)


def _low(c, negated):
    """Return the low half of a product: of minus `c` and minus the other factor, modulo 2^32.

    LLVM makes it a product of 32 bits, of which vectors have as many as lanes. It would see the low half of a product whose high half is
    used, too, and compute it once more with 64 bits for each lane.
    """
    return uint32((uint64(0x100000000) - (uint64(c) * uint64(negated) & uint64(0xFFFFFFFF))) & uint64(0xFFFFFFFF))


def philox(c0, c1, c2, c3, k0, k1):
    """Return the four uint32 words of Philox4x32-10 for counter (c0, c1, c2, c3) and key (k0, k1)."""
    for n in range(10):
        # The key grows by a constant each round (mod 2^32): golden ratio and sqrt(3) - 1.
        key0 = uint32((uint64(k0) + uint64(n) * uint64(0x9E3779B9)) & uint64(0xFFFFFFFF))
        key1 = uint32((uint64(k1) + uint64(n) * uint64(0xBB67AE85)) & uint64(0xFFFFFFFF))
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, key0, key1)
    return c0, c1, c2, c3


def bits(rng, index):
    """Return draw `index` as uint32, uniform over all 2^32 values."""
    words = philox(rng.environment, rng.step, rng.source, uint32(index >> 2), rng.seed_low, rng.seed_high)
    # Without branches, so that a loop over draws can become vectors.
    word = index & 3
    return where(word < 2, where(word == 0, words[0], words[1]), where(word == 2, words[2], words[3]))


def uniform(rng, index, low, high):
    """Return draw `index` as float32, uniform in steps of 2^-24 of the width: low <= draw < high if low < high, both finite float32.

    A draw that rounds to `high` becomes the float32 below it. If low == high the draw is that number; if low > high it may be either.
    """
    low, high = float32(low), float32(high)
    share = float32(np.int32(bits(rng, index) >> uint32(8))) * float32(1.0 / 16777216.0)
    # In halves, because the width may exceed the largest float32.
    half_low = float32(0.5) * low
    drawn = float32(2.0) * (half_low + (float32(0.5) * high - half_low) * share)
    last = from_bits(float_bits(high) - where(high > float32(0.0), 1, -1))
    last = where(high == float32(0.0), float32(-1.401298464324817e-45), last)
    drawn = where((low < high) & (drawn >= high), last, drawn)
    return where((low < high) & (drawn < low), low, drawn)  # halves of subnormals are rounded


def randint(rng, index, n):
    """Return draw `index` as int32, uniform in 0 .. n - 1 (bias below n / 2^32)."""
    return np.int32((uint64(bits(rng, index)) * uint64(n)) >> uint64(32))


def normal(rng, index):
    """Return draw `index` as float32 from the standard normal distribution; uses the uniform draws 2 index and 2 index + 1.

    Source: Box and Muller, "A note on the generation of random normal deviates", Annals of Mathematical Statistics 29, 1958.
    """
    u = uniform(rng, 2 * index, 0.0, 1.0) + float32(1.0 / 33554432.0)  # above 0, for the logarithm
    v = uniform(rng, 2 * index + 1, 0.0, 1.0)
    return sqrt(float32(-2.0) * log(u)) * cos(float32(6.283185307179586) * v)
