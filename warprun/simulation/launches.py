"""Launches of kernels as they are recorded: which kernels, with which arguments, and what two recordings have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from types import ModuleType
from typing import Generic, NamedTuple, TypeVar, cast

import numpy as np

from warprun.kernels.repeat import Watch

Results_co = TypeVar("Results_co", covariant=True)

NOTHING = ("aten.detach", "aten.alias", "aten.empty", "aten.new_empty", "aten._unsafe_view", "aten._reshape_alias", "aten.lift_fresh")
"""Beginnings of the names of torch's operations that are no work for a GPU, beside views."""


class Launch(NamedTuple):
    """A launch of a kernel."""

    module: ModuleType
    name: str
    grid: tuple[int, int]
    """Blocks, and threads of a block."""
    arguments: Sequence[object]
    shared_bytes: int
    owner: str
    """What the kernel belongs to, for messages."""
    members: int = 1
    """The second dimension of the grid."""


class _Recording:
    """The launches that are recorded."""

    made: list[Launch] | None = None
    """Those made so far, in their order; None while none are recorded."""


recording = _Recording()


class Recorded(Generic[Results_co]):
    """Work that has been done while its launches were recorded. It keeps the memory of its arguments."""

    def __init__(self, work: Callable[[], Results_co]) -> None:
        """Do the work."""
        watch = Watch(NOTHING)
        self.launches: list[Launch] = []
        recording.made = self.launches
        try:
            with watch:
                self.results = work()
        finally:
            recording.made = None
        self.is_launches = bool(self.launches) and not watch.torch_computes
        """Whether the launches are all that it does."""
        if not self.is_launches:
            self.launches.clear()

    @cached_property
    def _read(self) -> tuple[Hashable, list[int], list[float]]:
        places: list[int] = []
        numbers: list[float] = []
        # The module, not its name: modules whose code cannot be hashed may have the same one (`compile.load_module`).
        form = [
            (each.module, each.name, each.grid, each.shared_bytes, *_form(tuple(each.arguments), places, numbers)) for each in self.launches
        ]
        return tuple(form), places, numbers

    @cached_property
    def kind(self) -> int:
        """A number that work has in common if its launches are alike: they differ in addresses and in numbers that are no sizes."""
        return _kinds.setdefault(self._read[0], len(_kinds))

    @cached_property
    def places(self) -> np.ndarray:
        """The addresses of all arrays among the arguments, [P] int64."""
        return np.array(self._read[1], np.int64)

    @cached_property
    def numbers(self) -> np.ndarray:
        """The other numbers that members have of their own, [N] float64, which holds float32 and uint32 exactly."""
        return np.array(self._read[2], np.float64)


_kinds: dict[Hashable, int] = {}


def is_own(value: object) -> bool:
    """Return whether a number is one that members have of their own: sizes, which are whole numbers, they have in common."""
    return isinstance(value, float | np.floating | np.uint32)


def is_array(value: object) -> bool:
    """Return whether a value is an array on a GPU."""
    return hasattr(value, "__cuda_array_interface__")


def _form(value: object, places: list[int], numbers: list[float]) -> list[Hashable]:
    """Return what arguments must have in common to be alike, and append what they need not."""
    if isinstance(value, tuple):
        return [cast(Hashable, type(value)), len(value), *(part for each in value for part in _form(each, places, numbers))]
    if is_array(value):
        about = value.__cuda_array_interface__  # type: ignore[attr-defined]
        places.append(about["data"][0])
        return [about["typestr"], about["shape"], about["strides"]]
    if is_own(value):
        numbers.append(float(cast(float, value)))
        return [cast(Hashable, type(value))]
    return [cast(Hashable, type(value)), cast(Hashable, value)]
