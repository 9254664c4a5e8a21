"""Actions of a policy in the units of the environment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from warprun.spec import ActionKind, Space


def in_environment_units(space: Space, actions: np.ndarray) -> np.ndarray:
    """Return actions [..., C] of a policy as a step of the environment gets them, in the same dtype: int32, or float32 of a `Box`."""
    return CONVERSIONS[space.kind](space, actions)


def _counted(space: Space, actions: np.ndarray) -> np.ndarray:
    return actions + np.array(space.starts, actions.dtype)


def _within_bounds(space: Space, actions: np.ndarray) -> np.ndarray:
    return to_bounds(actions, np.array(space.bounds(), np.float32))


CONVERSIONS: dict[ActionKind, Callable[[Space, np.ndarray], np.ndarray]] = {"choices": _counted, "reals": _within_bounds}


def to_bounds(actions: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Return actions [..., size] of a policy in the units of a `Box` with `bounds` [size, 2], float32 all.

    The operations and their order are those of `kernels.sampling.to_bounds`, so the numbers are those of kernels, bit for bit.
    """
    low, high = bounds.T
    bounded = np.isfinite(bounds).all(1)
    share = (np.clip(actions, np.float32(-1.0), np.float32(1.0)) + np.float32(1.0)) * np.float32(0.5)
    mapped = np.where(bounded, low, 0) * (np.float32(1.0) - share) + np.where(bounded, high, 0) * share
    return np.clip(np.where(bounded, mapped, actions), low, high)
