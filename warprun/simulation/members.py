"""Runs of one process that train together on a GPU: the kernels of all of them are launched at once.

An agent of a few environments fills a small part of a GPU, and launches take longer than their work. So each of several runs is a
greenlet: its code goes on as if it were alone until it comes to work that makes the same launches each time (`Joined`). There it waits.
When all of them wait, those whose launches are alike are served by single launches (`cuda_members.merged`), and go on. A kernel computes
for a member what it computes for a run alone, in the same blocks and the same order, so results are the same bits.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Generic, NamedTuple, TextIO, TypeVar, TypeVarTuple

import torch
from greenlet import getcurrent, greenlet

from warprun.kernels.repeat import Captured
from warprun.simulation.launches import Recorded

Arguments = TypeVarTuple("Arguments")
Results = TypeVar("Results")

RECORDED = 3
"""Runs of work that are recorded, as long as torch computes something in them: the first ones may make what later ones use again."""
KEPT = 8
"""Sets of members whose merged launches are kept."""


class Joined(Generic[Results, *Arguments]):
    """Work of a member that is done together with that of others, from its second run on: the first one records it.

    It must keep to what `repeat.Captured` asks. A result lies in the memory of the recording: the next run with the same arguments
    overwrites it. Work in which torch computes something, in its first RECORDED runs, each member does for itself, as a run alone does,
    by a CUDA graph.
    """

    def __init__(self, work: Callable[[*Arguments], Results], device: torch.device) -> None:
        self._work, self._device = work, device
        self._alone = Captured(work) if device.type == "cuda" else work
        self._recorded: dict[tuple[*Arguments], Recorded[Results]] = {}
        self._runs: Counter[tuple[*Arguments]] = Counter()

    def __call__(self, *arguments: *Arguments) -> Results:
        """Do the work once."""
        recorded = self._recorded.get(arguments)
        if recorded is None or not recorded.is_launches:
            if self._runs[arguments] == RECORDED:
                return self._alone(*arguments)
            self._runs[arguments] += 1
            self._recorded[arguments] = recorded = Recorded(lambda: self._work(*arguments))
            return recorded.results
        getcurrent().parent.switch(Wanted(recorded, self._device))
        return recorded.results


class Wanted(NamedTuple):
    """Work that a member waits for, and the device of its arrays."""

    work: Recorded[object]
    device: torch.device


class Members:
    """Runs that train together; in each of them `inside` is true."""

    def __init__(self) -> None:
        self._begun = count()
        self._waiting: dict[_Member, Wanted] = {}
        self._own: dict[_Member, _Settings] = {}
        self._merged: OrderedDict[tuple[Recorded[object], ...], Callable[[], None]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of runs that have not ended."""
        return len(self._waiting)

    def begin(self, run: Callable[[], None]) -> None:
        """Let a run begin, and go on until it waits or ends. It handles its own exceptions."""
        self._go_on(_Member(run, next(self._begun)))

    def go_on(self) -> None:
        """Do what members wait for, and let them go on until all wait again or have ended.

        Those that most others do not wait with come first, so that they catch up.
        """
        groups: dict[tuple[int, torch.device], list[_Member]] = {}
        # In the order in which they began, whoever waited first: the same members have one set of merged launches.
        for member, wanted in sorted(self._waiting.items(), key=lambda each: each[0].number):
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

    def _go_on(self, member: _Member, failure: Exception | None = None) -> None:
        self._waiting.pop(member, None)
        before = _Settings.now()
        self._own.pop(member, before).restore()
        try:
            wanted = member.throw(failure) if failure else member.switch()
            if not member.dead:
                self._own[member] = _Settings.now()
        finally:
            before.restore()
        if member.dead:
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


class _Settings(NamedTuple):
    """Settings of the whole process that each run has of its own: its log, and `engine.tf32`."""

    out: TextIO
    errors: TextIO
    precision: str
    convolutions_in_tf32: bool

    @classmethod
    def now(cls) -> _Settings:
        return cls(sys.stdout, sys.stderr, torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)

    def restore(self) -> None:
        sys.stdout, sys.stderr = self.out, self.errors
        torch.set_float32_matmul_precision(self.precision)
        torch.backends.cudnn.allow_tf32 = self.convolutions_in_tf32


class _Member(greenlet):
    """The greenlet of a run."""

    def __init__(self, run: Callable[[], None], number: int) -> None:
        super().__init__(run)
        self.number = number


def inside() -> bool:
    """Return whether the code that asks is that of a member."""
    return isinstance(getcurrent(), _Member)
