"""State by name: what a checkpoint holds, and how it comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import numpy as np
import torch

from warprun.errors import UserError

State = dict[str, torch.Tensor]
"""Name -> the live tensor itself, not a copy; writing to it in place restores it."""


class Stateful(Protocol):
    """Something that continues with the same next bit after its state is restored."""

    def state(self) -> State:
        """Return all that the future depends on, by name: live tensors, counters among them, the same names and shapes on every call."""


class Counter:
    """A number that the host counts, readable without waiting for a device, with a live tensor for `Stateful.state`."""

    def __init__(self) -> None:
        self._array = np.zeros((), np.int64)
        self.tensor = torch.from_numpy(self._array)
        """[] int64 on the CPU, on the same memory."""

    @property
    def value(self) -> int:
        return int(self._array)

    @value.setter
    def value(self, value: int) -> None:
        self._array[()] = value


# On the CPU NumPy writes a few numbers in a fifth of torch's time. Iterations with few environments are so short that this counts.


def setting(tensor: torch.Tensor) -> Callable[[float], object]:
    """Return a function that sets all elements of a live tensor, for the operations that are launched from then on."""
    return tensor.numpy().fill if tensor.device.type == "cpu" else tensor.fill_


def counting(number: torch.Tensor) -> Callable[[], object]:
    """Return a function that adds 1 to a live tensor of one integer."""
    if number.device.type != "cpu":
        return partial(number.add_, 1)
    array = number.numpy()
    return lambda: array.fill(array.item() + 1)


def copying(to: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
    """Return a function that copies a live tensor to another one of the same shape and dtype."""
    if to.device.type == "cpu":
        return partial(to.numpy().__setitem__, ..., source.numpy())
    return partial(to.copy_, source)


def copied(state: Mapping[str, torch.Tensor]) -> State:
    """Return copies of live tensors."""
    return {name: tensor.clone() for name, tensor in state.items()}


def restore(own: State, saved: Mapping[str, torch.Tensor]) -> None:
    """Write `saved`, the state of an object built from the same settings, into the live tensors `own`.

    Raises UserError, and changes nothing, if names or shapes differ.
    """
    if own.keys() != saved.keys():
        name = min(own.keys() ^ saved.keys())
        where = "the saved state" if name in saved else "this run"
        raise UserError(f"the saved state is of an object with other settings: {name} is in {where} only")
    for name, tensor in own.items():
        shape = saved[name].shape
        if tensor.shape != shape:
            raise UserError(f"the saved state is of another object: {name} has shape {tuple(shape)} in it, here {tuple(tensor.shape)}")
    for name, tensor in own.items():
        tensor.copy_(saved[name])


def derived_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed that is a hash of `seed` and a purpose, such as ("evaluation",) or ("group", 2).

    Adding or shifting seeds makes streams overlap: draw 5 of seed 0 would be draw 4 of seed 1. A hash separates neighbouring seeds and
    the purposes of one seed. The result fits into an int64, as torch requires.
    """
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
