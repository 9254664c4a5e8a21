"""The state of a batch: its arrays and numbers, their names, and what is wrong with those after a step or a reset."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from warprun.simulation.batch import Array, Batch, Tree
from warprun.simulation.conversions import flattened, paths, tensor_of
from warprun.simulation.external.recipe import METHODS_OF_STATE

Leaves = list[torch.Tensor]
"""The arrays and numbers of a state."""
SIGNED = (torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes of arrays whose rows are those of environments."""
Form = list[tuple[tuple[int, ...], torch.dtype]]


def has_methods(batch: Batch) -> bool:
    """Return whether `get_state` and `set_state` tell the state, and not the attribute `state`."""
    return set(METHODS_OF_STATE) <= set(dir(batch))


def source_of(batch: Batch) -> str:
    """Return the name of the member that tells the state."""
    return METHODS_OF_STATE[0] if has_methods(batch) else "state"


def told_by(batch: Batch) -> Tree:
    """Return the state of a batch."""
    return batch.get_state() if has_methods(batch) else batch.state


def leaves_of(state: Tree) -> Leaves:
    """Return the arrays and numbers of a state, arrays on the same memory."""
    leaves, _ = flattened(state)
    return [torch.as_tensor(leaf) if isinstance(leaf, bool | int | float) else tensor_of(leaf) for leaf in leaves]


def give(batch: Batch, saved: Leaves, given: Callable[[torch.Tensor], Array]) -> None:
    """Let a batch continue from a saved state; `given` makes an array of a tensor."""
    leaves, rebuilt = flattened(told_by(batch))
    pairs = zip(leaves, saved, strict=True)
    state = rebuilt([old.item() if isinstance(now, bool | int | float) else given(old.clone()) for now, old in pairs])
    if has_methods(batch):
        batch.set_state(state)
    else:
        batch.state = state


def form_of(leaves: Sequence[torch.Tensor]) -> Form:
    return [(tuple(leaf.shape), leaf.dtype) for leaf in leaves]


def changed_form(source: str, state: Tree, before: Leaves, now: Leaves) -> str:
    """Return which array of a state, that of the member `source`, has another shape or dtype than before; empty if none has."""
    if len(before) != len(now):
        return f"{source} has {len(now)} arrays and numbers, and had {len(before)} before: it must always have the same ones"
    for name, old, new in zip(paths(state), form_of(before), form_of(now), strict=True):
        for what, was, became in zip(("shape", "dtype"), old, new, strict=True):
            if was != became:
                return f"{source}{name} has the {what} {_plain(became)}, and had {_plain(was)} before: keep its shape and dtype"
    return ""


def _plain(value: object) -> str:
    return str(value).removeprefix("torch.")


def changed_rows(batch: Batch, before: Leaves, now: Leaves, mask: torch.Tensor) -> str:
    """Return which array a reset has changed where `mask` [N] is false, and for which environment; empty if it has changed none there.

    Arrays in which one axis alone has the size N are looked at, without those of unsigned numbers, which may be keys of generators.
    """
    count = len(mask)
    for place, (old, new) in enumerate(zip(before, now, strict=True)):
        axes = [axis for axis, size in enumerate(old.shape) if size == count]
        if len(axes) == 1 and old.dtype in SIGNED:
            same = torch.isclose(old, new, 0.0, 0.0, equal_nan=old.is_floating_point()).movedim(axes[0], 0).reshape(count, -1).all(1)
            wrong = (~same & ~mask).nonzero()
            if len(wrong):
                return f"{source_of(batch)}{paths(told_by(batch))[place]} of environment {int(wrong[0])}"
    return ""
