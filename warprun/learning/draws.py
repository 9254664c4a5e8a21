"""Random numbers by torch, as pure functions of (seed, number of the draw): the same as those of `kernels.draws`."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from warprun.learning.kernels.draws import TOGETHER, Words
from warprun.state import derived_seed

BITS = 0xFFFFFFFF


class Stream(NamedTuple):
    """A random stream at one of its draws."""

    seed: int
    number: torch.Tensor
    """[] int64: number of the draw."""

    def words(self) -> Words:
        """Return the stream for kernels on CPU, on the memory of `number`."""
        low, high = seed_words(self.seed)
        return Words(np.uint32(low), np.uint32(high), self.number.numpy())


@cache
def seed_words(seed: int) -> tuple[int, int]:
    """Return two words of 32 bits for a seed.

    They are hashed because the number of a draw is added to them: without the hash, draw 5 of seed 0 would be draw 4 of
    seed 1.
    """
    hashed = derived_seed(seed, "draws")
    return hashed & BITS, hashed >> 32


def permutation(n: int, seed: int, draw: torch.Tensor, step_rows: int = 1) -> torch.Tensor:
    """Return a random order of 0..n-1, [n] int64, for the `draw`-th draw ([] int64), on its device.

    `step_rows`, a divisor of n: the rows of a step. They are cut into runs of up to TOGETHER rows, which stay together; 1: no rows do.
    """
    runs = -(-step_rows // TOGETHER)  # of a step
    keys = _shifted(_bits(n // step_rows * runs, seed, draw), 1)
    if step_rows > 1:
        row = torch.arange(n, dtype=torch.int32, device=draw.device)
        keys = keys[row // step_rows * runs + row % step_rows // TOGETHER]
    # Stable: equal keys occur, and must have the same order on every device. torch sorts int32 fastest.
    return keys.sort(stable=True).indices


def random_bits(n: int, seed: int, draw: torch.Tensor) -> torch.Tensor:
    """Return `n` numbers of 32 random bits, [n] int64, for the `draw`-th draw ([] int64), on its device."""
    return _bits(n, seed, draw).long() & BITS


def normals(n: int, seed: int, draw: torch.Tensor) -> torch.Tensor:
    """Return `n` standard normal numbers, [n] float32, for the `draw`-th draw ([] int64), on its device.

    Box & Muller 1958.
    """
    # 24 bits are exact in float32; half a step keeps the logarithm away from 0.
    u, v = (_shifted(_bits(2 * n, seed, draw), 8).float() + 0.5).mul_(2.0**-24).view(2, n)
    return (-2.0 * u.log()).sqrt() * (2.0 * torch.pi * v).cos()


def _bits(n: int, seed: int, draw: torch.Tensor) -> torch.Tensor:
    """Return `n` numbers of 32 random bits as int32, which takes half the time of int64."""
    low, high = seed_words(seed)
    key = _mix(_mix(draw + low) ^ high)
    return _mix(_mix(torch.arange(n, dtype=torch.int32, device=draw.device) ^ key) + key)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Return 32 well-mixed bits, int32, of the low 32 bits of `x`; Wellons' hash-prospector "lowbias32"."""
    x = x.int()
    x = (x ^ _shifted(x, 16)) * 0x7FEB352D
    x = (x ^ _shifted(x, 15)) * (0x846CA68B - 2**32)  # products of int32 wrap; the sign is a bit like the others
    return x ^ _shifted(x, 16)


def _shifted(x: torch.Tensor, places: int) -> torch.Tensor:
    """Return int32 `x` shifted to the right with zeros coming in."""
    return (x >> places) & (BITS >> places)
