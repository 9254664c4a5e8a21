"""Random orders that are a pure function of (seed, number of the draw): nothing to keep, the same on CPU and CUDA."""

from __future__ import annotations

import torch

BITS = 0xFFFFFFFF


def permutation(n: int, seed: int, draw: torch.Tensor) -> torch.Tensor:
    """Return a permutation of 0..n-1, [n] int64, for the `draw`-th draw ([] int64), on its device."""
    key = _mix(_mix(draw + (seed & BITS)) ^ (seed >> 32 & BITS))
    numbers = _mix(_mix(torch.arange(n, device=draw.device) ^ key) + key)
    # 31 bits and stable: equal keys, of which there are some, keep one order on every device; int32 has the fast sort.
    return (numbers >> 1).int().sort(stable=True).indices


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Return 32 well-mixed bits of int64 `x`; Wellons' hash-prospector "lowbias32"."""
    x = x & BITS
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & BITS
    x = ((x ^ (x >> 15)) * 0x846CA68B) & BITS
    return x ^ (x >> 16)
