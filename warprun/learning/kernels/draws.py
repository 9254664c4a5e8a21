"""Random numbers in kernels, as pure functions of (seed, number of the draw): the same as those of `learning.draws`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warprun.math import cos, log, sqrt

TOGETHER = 16
"""Most rows that an order may keep together: as many float32 numbers as a cache line holds."""

uint32, float32 = np.uint32, np.float32


class Words(NamedTuple):
    """A `Stream` as kernels take it."""

    low: np.uint32
    high: np.uint32
    """The words of its seed."""
    number: NDArray[np.int64]
    """[]."""


def mix(x):
    """Return 32 well-mixed bits of uint32 `x`."""
    x = uint32((x ^ (x >> uint32(16))) * uint32(0x7FEB352D))
    x = uint32((x ^ (x >> uint32(15))) * uint32(0x846CA68B))
    return uint32(x ^ (x >> uint32(16)))


def key_of(of):
    """Return the key of the draw that a stream (`Words`) is at."""
    return mix(uint32(mix(uint32(uint32(of.number[()]) + of.low)) ^ of.high))


def bits_of(key, index):
    """Return random bits `index` of a draw, uint32."""
    return mix(uint32(mix(uint32(uint32(index) ^ key)) + key))


def normal_of(key, index, count):
    """Return standard normal number `index` of `count`: Box and Muller 1958."""
    u = (float32(np.int32(bits_of(key, index) >> uint32(8))) + float32(0.5)) * float32(2.0**-24)
    v = (float32(np.int32(bits_of(key, count + index) >> uint32(8))) + float32(0.5)) * float32(2.0**-24)
    return sqrt(float32(-2.0) * log(u)) * cos(float32(6.283185307179586) * v)
