"""Spaces of Gymnasium as spaces of warprun, and the conversion of observations and actions. No numba, no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Wrapper, spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate

from warprun.errors import ContractError, shown
from warprun.simulation.external.recipe import SavesState
from warprun.simulation.units import in_environment_units, to_bounds
from warprun.spec import (
    BYTE,
    Box,
    Discrete,
    Field,
    FieldKind,
    MultiDiscrete,
    Part,
    Space,
)

float32 = np.float32
LARGEST = float(np.finfo(np.float32).max)
NEXT_STEP = (
    "resets an environment in the step after its episode has ended (AutoresetMode.NEXT_STEP) and ignores the action of this step, which an"
    " agent must not learn from; use env.vector=false, or a mode SAME_STEP or DISABLED"
)


@dataclass(frozen=True)
class Observations:
    """How observations of a space become rows of numbers."""

    size: int
    """Numbers of one observation."""
    fields: tuple[Field, ...]
    """Parts with several axes."""
    given: Part
    """The space, as programs with a trained policy know it."""
    flatten: Callable[[object], np.ndarray]
    """observation -> [size]. Raises ValueError or TypeError for one that is not in the shape of the space."""
    flatten_batch: Callable[[object, spaces.Space], np.ndarray]
    """(observations of n environments, their batched space) -> [n, size]."""


@dataclass(frozen=True)
class Actions:
    """How rows of a trajectory become actions of a space."""

    space: Space
    convert: Callable[[np.ndarray], np.ndarray]
    """[n, C] as in a trajectory -> [n, *shape of the space]; an environment gets a number of a Discrete as an int."""


def observations(space: spaces.Space, channels: str | None = None) -> Observations:
    """Return the conversion of an observation space: Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these.

    Discrete and MultiDiscrete become one-hot vectors, Dict and Tuple the parts one after the other. A Box of two or three axes is a field;
    `channels` says which axis has its channels, first or last (None: see `field_of`). Numbers of an image are divided by 255. Raises
    ContractError.
    """
    fields, size = [], 0
    for part in _parts(space):
        _check_observation(part)
        field = field_of(part, size, channels)
        fields += [] if field is None else [field]
        size += int(spaces.flatdim(part))
    if size < 1:
        raise ContractError(f"the observation space {_named(space)} has no numbers")
    if channels is not None and not fields:
        raise ContractError(f"env.channels={channels}: no part of the observations {_named(space)} has two or three axes")
    images = [field.columns for field in fields if field.kind == "image"]
    checked = any(field.kind != "real" for field in fields)

    def scaled(rows: np.ndarray) -> np.ndarray:
        for columns in images:
            rows[..., columns] /= float32(BYTE)
        return rows

    if isinstance(space, spaces.Box):

        def numbers(given: object) -> np.ndarray:
            if checked:
                _check_parts(space, given)
            return np.array(given, float32) if images else np.asarray(given, float32)

        def flatten(given: object) -> np.ndarray:
            array = numbers(given)
            if array.shape != space.shape:
                raise ValueError(f"the observation has the shape {array.shape}, and the observation space {space.shape}")
            return scaled(array.ravel())

        def flatten_batch(given: object, batched: spaces.Space) -> np.ndarray:
            array = numbers(given)
            if array.shape[1:] != space.shape:
                raise ValueError(f"the observations have the shape {array.shape}, and the observation space {space.shape}")
            return scaled(array.reshape(len(array), -1))

        return Observations(size, tuple(fields), part_of(space), flatten, flatten_batch)

    def flatten_parts(given: object) -> np.ndarray:
        _check_parts(space, given)
        row = np.array(spaces.flatten(space, given), float32)
        if row.shape != (size,):
            raise ValueError(f"the observation has {row.size} numbers, and the observation space {size}")
        return scaled(row)

    def flatten_each(given: object, batched: spaces.Space) -> np.ndarray:
        return np.stack([flatten_parts(one) for one in iterate(batched, given)])

    return Observations(size, tuple(fields), part_of(space), flatten_parts, flatten_each)


def part_of(space: spaces.Space) -> Part:
    """Return what observations of a space consist of, without the parts that have no numbers."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inside = space.spaces.items() if isinstance(space, spaces.Dict) else ((None, each) for each in space.spaces)
        named = [(name, part_of(each)) for name, each in inside if spaces.flatdim(each)]
        names = tuple(str(name) for name, _ in named) if isinstance(space, spaces.Dict) else ()
        return Part(names=names, parts=tuple(part for _, part in named))
    shape = tuple(map(int, space.shape or ()))
    if isinstance(space, spaces.Discrete):
        return Part(choices=(int(space.n),), start=(int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        choices, start = (tuple(map(int, np.ravel(numbers))) for numbers in (space.nvec, space.start))
        return Part(shape, choices, start)
    field = field_of(space, 0, None)
    return Part(shape, image=field is not None and field.kind == "image")


def bounds_of(space: spaces.Space) -> tuple[float | tuple[float, ...], float | tuple[float, ...]]:
    """Return the least and the largest numbers of the rows that observations of a space become: one for all columns, if these are equal."""
    found: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for part in _parts(space):
        own = (part.low, part.high) if isinstance(part, spaces.Box) and _kind(part) != "image" else (0.0, 1.0)
        for numbers, bound in zip(found, own, strict=True):
            given = np.broadcast_to(np.asarray(bound, np.float64).ravel(), int(spaces.flatdim(part)))
            numbers.append(np.where(np.abs(given) < LARGEST, given, np.copysign(np.inf, given)))
    low, high = (np.concatenate(numbers) for numbers in found)
    return _of_columns(low), _of_columns(high)


def _of_columns(bounds: np.ndarray) -> float | tuple[float, ...]:
    return float(bounds[0]) if (bounds == bounds[0]).all() else tuple(bounds.tolist())


def field_of(space: spaces.Space, first: int, channels: str | None) -> Field | None:
    """Return the field that a part of an observation is, from column `first` on; None if it is a Box of one axis, or no Box.

    The channels are in the axis `channels`, first or last. None: of three axes in the smaller one of the first and the last, of two in the
    first; but a uint8 picture of two axes has one channel.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
        return None
    shape, kind = tuple(map(int, space.shape)), _kind(space)
    if channels is None and len(shape) == 2 and kind == "image":
        return Field(first, (1, *shape), False, kind)
    last = channels == "last" if channels else len(shape) == 3 and shape[-1] < shape[0]
    return Field(first, (shape[-1], *shape[:-1]) if last else shape, last, kind)


def _kind(space: spaces.Box) -> FieldKind:
    if space.dtype == np.bool_:
        return "binary"
    is_image = len(space.shape) > 1 and space.dtype == np.uint8 and bool((space.low == 0).all() and (space.high == BYTE).all())
    return "image" if is_image else "real"


def actions(space: spaces.Space) -> Actions:
    """Return the conversion of an action space: Discrete, MultiDiscrete, MultiBinary or Box of floats. Raises ContractError."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        own, shape = _choices(space), space.shape or ()
        return Actions(own, lambda rows: in_environment_units(own, rows).reshape(-1, *shape).astype(space.dtype))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        bounds = [np.ravel(bound).astype(np.float64) for bound in (space.low, space.high)]
        low, high = (np.where(np.abs(bound) < LARGEST, bound, np.copysign(np.inf, bound)) for bound in bounds)
        box = Box(low.size, tuple(low.tolist()), tuple(high.tolist()))

        limits = np.array(box.bounds(), float32)

        def convert(rows: np.ndarray) -> np.ndarray:
            cast = to_bounds(rows, limits).reshape(-1, *space.shape).astype(space.dtype)
            return np.clip(cast, space.low, space.high)  # float32 rounds bounds of float64

        return Actions(box, convert)
    raise ContractError(
        f"the action space {_named(space)} is not supported; agents act in Discrete, MultiDiscrete, MultiBinary and Box of floats"
    )


def _choices(space: spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary) -> Space:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * math.prod(space.shape))
    return MultiDiscrete(*(tuple(map(int, np.ravel(numbers))) for numbers in (space.nvec, space.start)))


def _parts(space: spaces.Space) -> list[spaces.Space]:
    """Return the spaces that a space consists of."""
    inside = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces if isinstance(space, spaces.Tuple) else None
    return [space] if inside is None else [part for each in inside for part in _parts(each)]


def _check_observation(space: spaces.Space) -> None:
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise ContractError(
            f"the observation space {_named(space)} is not supported; agents observe Box, Discrete, MultiDiscrete, MultiBinary, and Dict"
            " and Tuple of these"
        )


def _check_parts(space: spaces.Space, given: Any, name: str = "") -> None:
    """Raise ValueError if a choice in an observation is not one of its space, since `spaces.flatten` would take another one; if an
    image is not of bytes, or what is true or false has other numbers; and if a part is missing, unknown or has another shape.

    `name`: of the part, as it is written behind the observation.
    """
    what = f"the part {name} of the observation" if name else "the observation"
    if isinstance(space, spaces.Box):
        array = np.asarray(given)
        if array.dtype != space.dtype and field_of(space, 0, None) and _kind(space) != "real":
            raise ValueError(f"{what} has the dtype {array.dtype}, and the observation space {space.dtype}")
        if name and (array.shape != space.shape or array.dtype.kind not in "biuf"):
            found = f"has the shape {array.shape}" if array.shape != space.shape else f"is {shown(given)}"
            raise ValueError(f"{what} must be numbers of the shape {space.shape}, as in its space; it {found}")
        return
    if isinstance(space, spaces.Discrete):
        inside = space.contains(given)
    elif isinstance(space, spaces.MultiDiscrete):
        chosen = np.asarray(given)
        inside = chosen.dtype.kind in "biu" and bool(((chosen >= space.start) & (chosen < space.start + space.nvec)).all())
    else:
        inside = True
        if isinstance(space, spaces.Dict):
            if not isinstance(given, Mapping):
                raise ValueError(f"{what} must be a dict with {', '.join(map(repr, space.spaces))}, as its space; it is {shown(given)}")
            for key, part in space.spaces.items():
                if key not in given:
                    raise ValueError(f"{what} lacks {key!r}, which its space has; it has {', '.join(map(repr, given))}")
                _check_parts(part, given[key], f"{name}[{key!r}]")
            more = [key for key in given if key not in space.spaces]
            if more:
                raise ValueError(f"{what} has {', '.join(map(repr, more))}, which observation_space lacks: add it there, or remove it")
        elif isinstance(space, spaces.Tuple):
            if not isinstance(given, Sequence | np.ndarray) or len(given) != len(space.spaces):
                raise ValueError(f"{what} must be a tuple of {len(space.spaces)} parts, as its space; it is {shown(given)}")
            for number, (part, own) in enumerate(zip(space.spaces, given, strict=True)):
                _check_parts(part, own, f"{name}[{number}]")
    if not inside:
        raise ValueError(f"{what.removesuffix(' of the observation')} {shown(given)} is not in the space {_named(space)}")


def _named(space: object) -> str:
    return " ".join(str(space).split()) if isinstance(space, spaces.Space) and len(str(space)) < 200 else shown(space)


# What steps and wrappers tell ------------------------------------------------------------------------------------------------


def resets_in_step(env: VectorEnv) -> bool:
    """Return whether a step resets environments whose episodes have ended; if not, the caller does. Raises ContractError."""
    mode = env.metadata.get("autoreset_mode")
    if mode == AutoresetMode.SAME_STEP:
        return True
    if mode == AutoresetMode.DISABLED:
        return False
    if mode == AutoresetMode.NEXT_STEP:
        raise ContractError(f"the vectorized environment {NEXT_STEP}")
    raise ContractError(f"metadata['autoreset_mode'] of the vectorized environment must be an AutoresetMode, not {shown(mode)}")


def mask_of(info: object, size: int) -> np.ndarray:
    """Return the action mask [size] in the info of a step or reset. Raises ValueError if there is none."""
    if not isinstance(info, dict) or "action_mask" not in info:
        raise ValueError("info has no action_mask; the info of the first reset had one")
    given = info["action_mask"]
    mask = np.concatenate([np.ravel(part) for part in given]) if isinstance(given, tuple) else np.ravel(given)
    if mask.shape != (size,):
        raise ValueError(f"action_mask has {mask.size} entries, and the actions {size}")
    return mask.astype(np.bool_)


def saver_of(env: object) -> SavesState | None:
    """Return the outermost of an environment and those that it wraps that has `get_state` and `set_state`; None if none has."""
    while not isinstance(env, SavesState):
        if not isinstance(env, Wrapper):
            return None
        env = env.env
    return env
