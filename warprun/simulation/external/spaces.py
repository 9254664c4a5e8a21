"""Spaces of Gymnasium as spaces of warprun, and the conversion of observations and actions. No numba, no torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from warprun.errors import ContractError, shown
from warprun.spec import Box, Discrete, MultiDiscrete, Space

float32 = np.float32
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Observations:
    """How observations of a space become rows of numbers."""

    size: int
    """Numbers of one observation."""
    flatten: Callable[[Any], np.ndarray]
    """observation -> [size]. Raises ValueError or TypeError for one that is not in the shape of the space."""
    flatten_batch: Callable[[Any, Any], np.ndarray]
    """(observations of n environments, their batched space) -> [n, size]."""


@dataclass(frozen=True)
class Actions:
    """How rows of a trajectory become actions of a space."""

    space: Space
    convert: Callable[[np.ndarray], np.ndarray]
    """[n, C] as in a trajectory -> [n, *shape of the space]."""
    integers: bool
    """Whether one action is a single integer, which an environment gets as an int."""


def observations(space: Any) -> Observations:
    """Return the conversion of an observation space: Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these.

    Discrete and MultiDiscrete become one-hot vectors, Dict and Tuple the parts one after the other. Raises ContractError.
    """
    for part in _parts(space):
        _check_observation(part)
    size = int(spaces.flatdim(space))
    if size < 1:
        raise ContractError(f"the observation space {_named(space)} has no numbers")
    if isinstance(space, spaces.Box):
        return Observations(size, lambda given: _of_shape(given, space.shape).ravel(), lambda given, _: _batch(given, space.shape))

    def flatten(given: Any) -> np.ndarray:
        _check_choices(space, given)
        row = np.asarray(spaces.flatten(space, given), float32)
        if row.shape != (size,):
            raise ValueError(f"the observation has {row.size} numbers, and the observation space {size}")
        return row

    def flatten_batch(given: Any, batched: Any) -> np.ndarray:
        return np.stack([flatten(one) for one in iterate(batched, given)])

    return Observations(size, flatten, flatten_batch)


def actions(space: Any) -> Actions:
    """Return the conversion of an action space: Discrete, MultiDiscrete, MultiBinary or Box of floats. Raises ContractError."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return Actions(Discrete(int(space.n)), lambda rows: rows[:, 0].astype(np.int64) + start, True)
    if isinstance(space, spaces.MultiDiscrete):
        first = np.asarray(space.start)
        choices = tuple(int(n) for n in np.ravel(space.nvec))
        return Actions(MultiDiscrete(choices), lambda rows: rows.reshape(-1, *space.shape).astype(space.dtype) + first, False)
    if isinstance(space, spaces.MultiBinary):
        bits = MultiDiscrete((2,) * math.prod(space.shape))
        return Actions(bits, lambda rows: rows.reshape(-1, *space.shape).astype(np.int8), False)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        bounds = [np.ravel(bound).astype(np.float64) for bound in (space.low, space.high)]
        low, high = (np.where(np.abs(bound) < LARGEST, bound, np.copysign(np.inf, bound)) for bound in bounds)
        box = Box(low.size, tuple(low.tolist()), tuple(high.tolist()))

        def convert(rows: np.ndarray) -> np.ndarray:
            cast = to_bounds(rows, low, high).reshape(-1, *space.shape).astype(space.dtype)
            return np.clip(cast, space.low, space.high)  # float32 rounds bounds of float64

        return Actions(box, convert, False)
    raise ContractError(
        f"the action space {_named(space)} is not supported; agents act in Discrete, MultiDiscrete, MultiBinary and Box of floats"
    )


def to_bounds(rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return actions [n, C] in the units of an environment, float32, by the rule of `spec.Box` and the arithmetic of the kernels."""
    low, high = low.astype(float32), high.astype(float32)
    bounded = np.isfinite(low) & np.isfinite(high)
    share = (np.clip(rows, float32(-1.0), float32(1.0)) + float32(1.0)) * float32(0.5)
    mapped = np.where(bounded, low, 0) * (float32(1.0) - share) + np.where(bounded, high, 0) * share
    return np.clip(np.where(bounded, mapped, rows), low, high)


def _parts(space: Any) -> list[Any]:
    """Return the spaces that a space consists of."""
    inside = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces if isinstance(space, spaces.Tuple) else None
    return [space] if inside is None else [part for each in inside for part in _parts(each)]


def _check_observation(space: Any) -> None:
    if isinstance(space, spaces.Box):
        if len(space.shape) == 3 and space.dtype == np.uint8:
            raise ContractError(
                f"the observations {_named(space)} are images, which no network of warprun reads; give features, such as those of a wrapper"
            )
    elif not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise ContractError(
            f"the observation space {_named(space)} is not supported; agents observe Box, Discrete, MultiDiscrete, MultiBinary, and Dict"
            " and Tuple of these"
        )


def _check_choices(space: Any, given: Any) -> None:
    """Raise ValueError if a choice in an observation is not one of its space; `spaces.flatten` would take another one."""
    if isinstance(space, spaces.Discrete):
        inside = space.contains(given)
    elif isinstance(space, spaces.MultiDiscrete):
        chosen = np.asarray(given)
        inside = chosen.dtype.kind in "biu" and bool(((chosen >= space.start) & (chosen < space.start + space.nvec)).all())
    else:
        inside = True
        if isinstance(space, spaces.Dict):
            for name, part in space.spaces.items():
                _check_choices(part, given[name])
        elif isinstance(space, spaces.Tuple):
            for part, own in zip(space.spaces, given, strict=True):
                _check_choices(part, own)
    if not inside:
        raise ValueError(f"the observation {shown(given)} is not in the space {_named(space)}")


def _of_shape(given: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(given, float32)
    if array.shape != shape:
        raise ValueError(f"the observation has the shape {array.shape}, and the observation space {shape}")
    return array


def _batch(given: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(given, float32)
    if array.shape[1:] != shape:
        raise ValueError(f"the observations have the shape {array.shape}, and the observation space {shape}")
    return array.reshape(len(array), -1)


def _named(space: Any) -> str:
    return " ".join(str(space).split()) if isinstance(space, spaces.Space) and len(str(space)) < 200 else shown(space)
