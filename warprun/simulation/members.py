"""Runs of one process that train together on a GPU: the kernels of all of them are launched at once.

An agent of a few environments fills a small part of a GPU, and launches take longer than their work. So each of several runs is a
greenlet: its code goes on as if it were alone until it comes to work that makes the same launches each time (`Joined`). There it waits.
When all of them wait, those whose launches are alike are served by single launches (`cuda_members.merged`), and go on. A kernel computes
for a member what it computes for a run alone, in the same blocks and the same order, so results are the same bits.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from types import ModuleType
from typing import Generic, NamedTuple, TextIO, TypeVar, TypeVarTuple, cast

import numpy as np
import torch
from greenlet import getcurrent, greenlet

from warprun.kernels.repeat import Watch

Arguments = TypeVarTuple("Arguments")
Results = TypeVar("Results")
Results_co = TypeVar("Results_co", covariant=True)

KEPT = 8
"""Sets of members whose merged launches are kept."""
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
        form = [
            (each.module.__name__, each.name, each.grid, each.shared_bytes, *_form(tuple(each.arguments), places, numbers))
            for each in self.launches
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


class Joined(Generic[Results, *Arguments]):
    """Work of a member that is done together with that of others, from its second run on: the first one records it.

    It must keep to what `repeat.Captured` asks. A result lies in the memory of the recording: the next run with the same arguments
    overwrites it. Work in which torch computes something each member does for itself.
    """

    def __init__(self, work: Callable[[*Arguments], Results], device: torch.device) -> None:
        self._work, self._device = work, device
        self._recorded: dict[tuple[*Arguments], Recorded[Results]] = {}

    def __call__(self, *arguments: *Arguments) -> Results:
        """Do the work once."""
        recorded = self._recorded.get(arguments)
        if recorded is None:
            self._recorded[arguments] = recorded = Recorded(lambda: self._work(*arguments))
            return recorded.results
        if not recorded.is_launches:
            return self._work(*arguments)
        getcurrent().parent.switch(Wanted(recorded, self._device))
        return recorded.results


class Wanted(NamedTuple):
    """What a member waits for."""

    work: Recorded[object]
    device: torch.device


class Members:
    """Runs that train together; in each of them `inside` is true."""

    def __init__(self) -> None:
        self._waiting: dict[greenlet, Wanted] = {}
        self._streams: dict[greenlet, tuple[TextIO, TextIO]] = {}
        """What the standard streams are to a member."""
        self._merged: OrderedDict[tuple[Recorded[object], ...], Callable[[], None]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of runs that have not ended."""
        return len(self._waiting)

    def begin(self, run: Callable[[], None]) -> None:
        """Let a run begin, and go on until it waits or ends. It handles its own exceptions."""
        self._go_on(_Member(run))

    def go_on(self) -> None:
        """Do what members wait for, and let them go on until all wait again or have ended.

        Those that most others do not wait with come first, so that they catch up.
        """
        groups: dict[tuple[int, torch.device], list[greenlet]] = {}
        for member, wanted in self._waiting.items():
            groups.setdefault((wanted.work.kind, wanted.device), []).append(member)
        in_order = sorted(groups.values(), key=len)
        for group in in_order[:-1] or in_order:
            try:
                self._do([self._waiting[member] for member in group])
            except Exception as error:  # it is that of each of them
                for member in group:
                    self._go_on(member, error)
                continue
            for member in group:
                self._go_on(member)

    def _go_on(self, member: greenlet, failure: Exception | None = None) -> None:
        self._waiting.pop(member, None)
        own = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._streams.pop(member, own)
        try:
            wanted = member.throw(failure) if failure else member.switch()
            self._streams[member] = sys.stdout, sys.stderr
        finally:
            sys.stdout, sys.stderr = own
        if member.dead:
            del self._streams[member]
            self._merged.clear()  # what is merged keeps the memory of its members
        else:
            self._waiting[member] = wanted

    def _do(self, wanted: Sequence[Wanted]) -> None:
        works = tuple(each.work for each in wanted)
        if works not in self._merged:
            # Imports Numba's CUDA part, which may be absent where there is no GPU.
            from warprun.simulation.cuda_members import merged

            self._merged[works] = merged(works, wanted[0].device)
            if len(self._merged) > KEPT:
                self._merged.popitem(last=False)
        self._merged.move_to_end(works)
        self._merged[works]()


class _Member(greenlet):
    """The greenlet of a run."""


def inside() -> bool:
    """Return whether the code that asks is that of a member."""
    return isinstance(getcurrent(), _Member)
