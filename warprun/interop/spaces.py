"""Spaces of Gymnasium for those of environments."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from warprun.spec import Box, Discrete, Space


def space_of(space: Space) -> spaces.Space:
    """Return the space of Gymnasium: Discrete of int64, MultiDiscrete of int64, or Box of float32 in the environment's units."""
    if isinstance(space, Discrete):
        return spaces.Discrete(space.n)
    if isinstance(space, Box):
        low, high = (np.array(bounds, np.float32) for bounds in zip(*space.bounds(), strict=True))
        return spaces.Box(low, high, dtype=np.float32)
    return spaces.MultiDiscrete(np.array(space.nvec))
