"""Random numbers and permutations as pure functions of (seed, number of the draw): without state, and the same on CPU and CUDA."""

from __future__ import annotations

import torch

from warprun.learning.replay.draws import seed_words

BITS = 0xFFFFFFFF


def permutation(n: int, seed: int, draw: torch.Tensor) -> torch.Tensor:
    """Return a permutation of 0..n-1, [n] int64, for the `draw`-th draw ([] int64), on its device."""
    # Stable: equal keys occur, and must have the same order on every device. torch sorts int32 fastest.
    return _shifted(_bits(n, seed, draw), 1).sort(stable=True).indices


def random_bits(n: int, seed: int, draw: torch.Tensor) -> torch.Tensor:
    """Return `n` numbers of 32 random bits, [n] int64, for the `draw`-th draw ([] int64), on its device."""
    return _bits(n, seed, draw).long() & BITS


def normals(n: int, seed: int, draw: torch.Tensor) -> torch.Tensor:
    """Return `n` standard normal numbers, [n] float32, for the `draw`-th draw ([] int64), on its device; Box & Muller 1958."""
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
