"""Random numbers and orders that are a pure function of (seed, number of the draw): nothing to keep, the same on CPU and CUDA."""

from __future__ import annotations

import torch

BITS = 0xFFFFFFFF


def permutation(n: int, seed: int, draw: torch.Tensor) -> torch.Tensor:
    """Return a permutation of 0..n-1, [n] int64, for the `draw`-th draw ([] int64), on its device."""
    # 31 bits and stable: equal keys, of which there are some, keep one order on every device; int32 has the fast sort.
    return (random_bits(n, seed, draw) >> 1).int().sort(stable=True).indices


def random_bits(n: int, seed: int, draw: torch.Tensor) -> torch.Tensor:
    """Return `n` numbers of 32 random bits, [n] int64, for the `draw`-th draw ([] int64), on its device."""
    key = _mix(_mix(draw + (seed & BITS)) ^ (seed >> 32 & BITS))
    return _mix(_mix(torch.arange(n, device=draw.device) ^ key) + key)


def normals(n: int, seed: int, draw: torch.Tensor) -> torch.Tensor:
    """Return `n` standard normal numbers, [n] float32, for the `draw`-th draw ([] int64), on its device; Box & Muller 1958."""
    # 24 bits are exact in float32; half a step keeps the logarithm away from 0.
    u, v = ((random_bits(2 * n, seed, draw) >> 8).float() + 0.5).mul_(2.0**-24).view(2, n)
    return (-2.0 * u.log()).sqrt() * (2.0 * torch.pi * v).cos()


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Return 32 well-mixed bits of int64 `x`; Wellons' hash-prospector "lowbias32"."""
    x = x & BITS
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & BITS
    x = ((x ^ (x >> 15)) * 0x846CA68B) & BITS
    return x ^ (x >> 16)
