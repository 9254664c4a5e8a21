"""Observations that programs give to a policy, as rows of the numbers that it was trained with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from warprun.errors import UserError, shown
from warprun.spec import BYTE, Box, GroupSpec, Part

Floats = Callable[[str, torch.Tensor], torch.Tensor]


def is_observation(group: GroupSpec, obs: Mapping[str, object]) -> bool:
    """Return whether a dict is an observation of the group, not observations by the name of the group."""
    names = () if group.given is None else group.given.names
    return bool(names) and (set(obs) == set(names) or not set(obs) <= {group.name})


def device_of(obs: object) -> torch.device | None:
    """Return the device of the first tensor in an observation; None: it has none."""
    if isinstance(obs, torch.Tensor):
        return obs.device
    parts = obs.values() if isinstance(obs, Mapping) else obs if isinstance(obs, tuple) else ()
    return next((found for part in parts if (found := device_of(part)) is not None), None)


def rows_of(group: GroupSpec, obs: object) -> torch.Tensor:
    """Return observations, as the environment gives them or rows [..., F], as rows [..., F] float32. Raises UserError."""
    name, given = f"obs of group {group.name!r}", group.given
    if given is not None and given.parts and isinstance(obs, Mapping if given.names else tuple):
        columns = [_numbers(where, array, tensor_of(where, value)) for where, array, value in _arrays(name, given, obs)]
        if len({each.shape[:-1] for each in columns}) > 1:
            batches = ", ".join(shape_of(each[..., 0]) for each in columns)
            raise UserError(f"{name}: its parts are batches of different shapes: {batches}")
        return torch.cat(columns, -1)
    array = tensor_of(name, obs)
    if given is not None and not given.parts and _is_in_shape(given, array):
        return _numbers(name, given, array)
    rows = _flat(group.observation, array)
    if rows.ndim == 0 or rows.shape[-1] != group.observation.size:
        integers = not array.is_floating_point() and (array.ndim == 0 or (given is not None and given.choices))
        hint = "; a Discrete observation is given one-hot, as gymnasium.spaces.flatten does" if integers else ""
        raise UserError(f"{name} must have the shape [..., {group.observation.size}], not {shape_of(array)}{hint}")
    return _row_of_parts(name, given, rows) if given else _row_of_fields(name, group.observation, rows)


def _arrays(name: str, given: Part, obs: object) -> Iterator[tuple[str, Part, object]]:
    """Yield the arrays of an observation in the order of the columns: what messages call it, what it is, and its value."""
    if not given.parts:
        yield name, given, obs
    elif given.names:
        if not isinstance(obs, Mapping):
            raise UserError(f"{name} must be a dict with {', '.join(given.names)}, not {shown(obs)}")
        for key, part in zip(given.names, given.parts, strict=True):
            if key not in obs:
                raise UserError(f"{name} has no {key!r}; it must have {', '.join(given.names)}")
            yield from _arrays(f"{name}, {key!r}", part, obs[key])
    else:
        if not isinstance(obs, tuple) or len(obs) != len(given.parts):
            raise UserError(f"{name} must be a tuple of {len(given.parts)} parts, not {shown(obs)}")
        for number, (part, own) in enumerate(zip(given.parts, obs, strict=True)):
            yield from _arrays(f"{name}, part {number}", part, own)


def _numbers(name: str, given: Part, array: torch.Tensor) -> torch.Tensor:
    """Return an array [..., *shape] of an observation as columns [..., size] float32."""
    axes = len(given.shape)
    if array.ndim < axes or array.shape[array.ndim - axes :] != given.shape:
        raise UserError(f"{name} must have the shape [{', '.join(map(str, ('...', *given.shape)))}], not {shape_of(array)}")
    flat = array.reshape(*array.shape[: array.ndim - axes], -1)
    if not given.choices:
        return _pixels(name, flat, _bytes_or_shares) if given.image else flat.to(torch.float32)
    if flat.is_floating_point():
        raise UserError(f"{name} must hold integers, as of a Discrete, not {flat.dtype}")
    chosen = flat.long() - torch.tensor(given.start, device=flat.device)
    wrong = (chosen < 0) | (chosen >= torch.tensor(given.choices, device=flat.device))
    if bool(wrong.any()):
        number = int(flat[wrong][0])
        raise UserError(f"{name} has {number}, which is not in its space")
    return torch.cat([torch.nn.functional.one_hot(chosen[..., n], count) for n, count in enumerate(given.choices)], -1).to(torch.float32)


def _is_in_shape(given: Part, array: torch.Tensor) -> bool:
    """Return whether an array is in the shape of the environment's; else it is a row, and so is a list of single numbers."""
    axes = len(given.shape)
    return array.ndim == 0 if not axes else array.shape[-axes:] == given.shape


def _flat(space: Box, array: torch.Tensor) -> torch.Tensor:
    """Return observations of which all numbers are one field as rows, if they are in its shape; others as they are."""
    if len(space.fields) != 1 or space.rest:
        return array
    (field,) = space.fields
    alone = field.shape[0] == 1 and not field.channels_last  # the axis of a single channel can be left out
    for shape in (field.order, *([field.order[1:]] if alone else [])):
        if array.shape[-len(shape) :] == shape:
            return array.flatten(-len(shape))
    return array


def _row_of_fields(name: str, space: Box, rows: torch.Tensor) -> torch.Tensor:
    """Return rows of an environment that gives rows itself: numbers of images are within 0..1, or bytes."""
    found = rows.to(torch.float32, copy=True)
    for field in space.fields:
        if field.kind == "image":
            found[..., field.columns] = _pixels(_columns(name, field.columns), rows[..., field.columns], _shares)
    return found


def _row_of_parts(name: str, given: Part, rows: torch.Tensor) -> torch.Tensor:
    """Return rows as `gymnasium.spaces.flatten` makes them, whose images can be divided by 255 already."""
    found, end = rows.to(torch.float32, copy=True), 0
    for array in given.arrays:
        columns = slice(end, end := end + array.size)
        if array.image:
            found[..., columns] = _pixels(_columns(name, columns), rows[..., columns], _bytes_or_shares)
        for count in array.choices:
            own = slice(columns.start, columns.start + count)
            columns = slice(own.stop, end)
            one_hot = ((found[..., own] == 0) | (found[..., own] == 1)).all() and (found[..., own].sum(-1) == 1).all()
            if not bool(one_hot):
                raise UserError(f"{_columns(name, own)} must be one-hot, as gymnasium.spaces.flatten makes them: a 1 and zeros")
    return found


def _columns(name: str, columns: slice) -> str:
    return f"{name}, columns {columns.start} to {columns.stop - 1},"


def _pixels(name: str, numbers: torch.Tensor, of_floats: Floats) -> torch.Tensor:
    """Return numbers of an image within 0..1: integers are bytes; `of_floats` says what floats are, float32 and finite."""
    found = numbers.to(torch.float32)
    if not found.numel() or not bool(found.isfinite().all()):
        return found
    if numbers.dtype == torch.bool or float(found.min()) < 0.0 or float(found.max()) > BYTE:
        held = "True and False" if numbers.dtype == torch.bool else f"{float(found.min()):g} to {float(found.max()):g}"
        raise UserError(f"{name} must be a picture of bytes, 0 to 255, and has {held}")
    return of_floats(name, found) if numbers.is_floating_point() else found / BYTE


def _bytes_or_shares(name: str, numbers: torch.Tensor) -> torch.Tensor:
    """Return bytes in floats divided by 255, and shares of 255 as they are, if it shows which of them the numbers are."""
    highest = float(numbers.max())
    if bool((numbers == numbers.round()).all()):
        if highest == 1.0:
            raise UserError(f"{name} must be a picture, and has only 0.0 and 1.0: of 255 or of 1? Give its bytes with the dtype uint8")
        return numbers / BYTE
    if highest > 1.0:
        raise UserError(f"{name} must be a picture of bytes, 0 to 255, or these divided by 255, and has fractions up to {highest:g}")
    return numbers


def _shares(name: str, numbers: torch.Tensor) -> torch.Tensor:
    if float(numbers.max()) > 1.0:
        raise UserError(f"{name} must be a picture with floats from 0 to 1, as the environment gives it, or with integers from 0 to 255")
    return numbers


def tensor_of(name: str, value: object) -> torch.Tensor:
    """Return an array of real numbers as a tensor. Raises UserError."""
    try:
        found = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{name} must be an array or a tensor of numbers, not {shown(value)}") from None
    if found.is_complex():
        raise UserError(f"{name} must hold real numbers, not {found.dtype}")
    return found


def shape_of(tensor: torch.Tensor) -> str:
    """Return the shape of a tensor for messages."""
    return str(list(tensor.shape))
