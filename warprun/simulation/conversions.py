"""Conversions between tensors and the arrays, states and actions of a batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch

from warprun.errors import shown
from warprun.simulation.batch import Array, Tree
from warprun.spec import ActionKind, Space

ALIGNED = 16
"""Bytes whose multiples are addresses that every library takes: on a GPU, JAX takes no others."""


def giver(arrays: ModuleType) -> Callable[[torch.Tensor], Array]:
    """Return the function from tensors to arrays of a library on the same memory.

    Of a library other than numpy and torch, which take any address, they are on a copy if the tensor does not begin at a multiple of
    ALIGNED bytes, as rows of a larger one may.
    """
    if arrays is torch:
        return lambda tensor: tensor
    if arrays is np:
        return np.from_dlpack
    return lambda tensor: arrays.from_dlpack(tensor if tensor.data_ptr() % ALIGNED == 0 else tensor.clone())


def tensor_of(given: Array) -> torch.Tensor:
    """Return an array as a tensor on the same memory; of an array of numpy that is read-only, a copy.

    Raises TypeError for what is no array, and the errors of the library.
    """
    if isinstance(given, torch.Tensor):
        return given
    if isinstance(given, np.ndarray):
        return torch.from_numpy(np.require(given, requirements="W"))
    if not hasattr(type(given), "__dlpack__"):
        raise TypeError(f"{shown(given)} is no array with DLPack")
    return torch.from_dlpack(given)


def host_array(given: Array) -> np.ndarray | None:
    """Return an array of the host as one of NumPy on the same memory, which may be read-only; None if it is not there, or another dtype.

    Buffers of Python, which arrays of JAX on a CPU are, take less time than DLPack.
    """
    if isinstance(given, np.ndarray):
        return given
    try:
        return given.detach().numpy() if isinstance(given, torch.Tensor) else np.asarray(memoryview(given))
    except (TypeError, ValueError, RuntimeError, BufferError):
        return None


def converter(space: Space, place: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function from actions [N, C] of a trajectory to those of the environment.

    Those of a Discrete are [N], choices are counted from their `start`, those of a Box within its bounds.
    """
    return CONVERTERS[space.kind](space, place)


def _counted(space: Space, place: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    if not any(space.starts):
        return lambda actions: actions.reshape(-1, *space.shape)  # without a copy
    first = torch.tensor(space.starts, dtype=torch.int32, device=place)
    return lambda actions: (actions + first).reshape(-1, *space.shape)


def _within_bounds(space: Space, place: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the conversion of real numbers. The operations and their order are those of `units.to_bounds`."""
    pairs = dict.fromkeys(space.bounds())  # of equal bounds one will do, which is faster
    bounds = torch.tensor(tuple(pairs) if len(pairs) == 1 else space.bounds(), dtype=torch.float32, device=place)
    low, high = (bound.contiguous() for bound in bounds.squeeze(0).unbind(-1))
    bounded = low.isfinite() & high.isfinite()
    least, most = low.masked_fill(~bounded, 0.0), high.masked_fill(~bounded, 0.0)
    every = bool(bounded.all())

    def convert(actions: torch.Tensor) -> torch.Tensor:
        share = actions.clamp(-1.0, 1.0).add_(1.0).mul_(0.5)
        mapped = (1.0 - share).mul_(least).add_(share.mul_(most))
        return (mapped if every else torch.where(bounded, mapped, actions)).clamp_(low, high)

    return convert


CONVERTERS: dict[ActionKind, Callable[[Space, torch.device], Callable[[torch.Tensor], torch.Tensor]]] = {
    "choices": _counted,
    "reals": _within_bounds,
}


def flattened(state: Tree) -> tuple[list[Array], Callable[[list[Array]], Tree]]:
    """Return the arrays and numbers of a state, and a function that makes such a state of others."""
    if "jax" in sys.modules:  # it knows more classes
        from jax import tree_util

        leaves, form = tree_util.tree_flatten(state)
        return leaves, lambda others: tree_util.tree_unflatten(form, others)
    from torch.utils import _pytree as pytree

    leaves, spec = pytree.tree_flatten(state)
    return leaves, lambda others: pytree.tree_unflatten(others, spec)


def paths(state: Tree) -> list[str]:
    """Return how each array and number of a state is written behind it, such as "['speed']"; empty for an array alone."""
    if "jax" in sys.modules:
        from jax import tree_util

        return [tree_util.keystr(path) for path, _ in tree_util.tree_flatten_with_path(state)[0]]
    from torch.utils import _pytree as pytree

    return [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(state)[0]]
