"""Kernel calls on CPU that are recorded once and then made again by machine code: what CUDA graphs are on a GPU.

An update of ten environments computes for 60 microseconds. Python needs as long to get from one of its kernels to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, TypeVarTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from warprun.errors import UserError
from warprun.kernels.bound import NEVER, Made, recording
from warprun.kernels.team import team

Arguments = TypeVarTuple("Arguments")
Results = TypeVar("Results")

TRIES = 10
"""Runs in which work may become the same as in the run before. The first ones of an agent compile kernels and make views."""
CHECKED = 100
"""One of so many runs is made by Python, to see whether the work is still the same."""
KEYS = 16
"""Combinations of arguments that may be recorded; what is recorded keeps its memory."""


class Repeated(Generic[Results, *Arguments]):
    """CPU work that machine code repeats once it has made the same kernel calls (`Call`) twice in a row, and torch nothing but views.

    What cannot be seen from outside, the work must keep to, as for `graph.Captured`: Python computes nothing in it, numbers that change
    between runs lie in memory, which the host writes before the call, and the results are tensors that are always in the same memory, so
    the next run overwrites them. The arguments are hashable; each combination is recorded on its own. Raises UserError if the work makes
    other calls later.
    """

    def __init__(self, work: Callable[[*Arguments], Results], threads: int) -> None:
        self._work = work
        self._team = team(threads)
        self._known: dict[tuple[*Arguments], _Known[Results]] = {}

    @property
    def repeats(self) -> bool:
        """Whether some of the work is repeated."""
        return any(known.repeat for known in self._known.values())

    def __call__(self, *arguments: *Arguments) -> Results:
        """Run the work once."""

        def work() -> Results:
            return self._work(*arguments)

        if recording.made is not None or (arguments not in self._known and len(self._known) == KEYS):
            return work()
        known = self._known.setdefault(arguments, _Known())
        known.runs += 1
        if known.repeat and known.last:
            if known.runs % CHECKED:
                known.repeat()
                return known.last.results
            checked = Recording(work)
            if not checked.repeats(known.last):
                raise UserError("an update has made other kernel calls than the same update before it; run with engine.capture=false")
            return checked.results
        if known.runs > TRIES:
            known.last = None
            return work()
        former, known.last = known.last, Recording(work)
        if former and known.last.repeats(former):
            known.repeat = self._team.repeating(known.last.made)
        return known.last.results


class _Known(Generic[Results]):
    """What is known of the work with some arguments."""

    def __init__(self) -> None:
        self.runs = 0
        self.last: Recording[Results] | None = None
        self.repeat: Callable[[], None] | None = None
        """Makes the calls of `last`."""


class Recording(Generic[Results]):
    """What a run did: its kernel calls, whether torch computed something, and its results."""

    def __init__(self, work: Callable[[], Results]) -> None:
        """Run `work`."""
        watch = _Watch()
        self.made: list[Made] = []
        recording.made = self.made
        try:
            with watch:
                self.results = work()
        finally:
            recording.made = None
        self.torch_computes = watch.torch_computes
        if self.torch_computes:
            self.made.clear()  # they keep memory

    def repeats(self, former: Recording[Results]) -> bool:
        """Return whether both runs made the same kernel calls, which wrote results to the same tensors, and nothing else."""
        places = _places(self.results)
        if not self.made or any(call.code == NEVER for call in self.made) or places is None:
            return False
        return not self.torch_computes and self.made == former.made and places == _places(former.results)


class _Watch(TorchDispatchMode):
    """Sees the operations of torch that are not only views."""

    torch_computes = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # To keep its compiler out of this class, torch would import it, which takes a second.
        return False

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.torch_computes = self.torch_computes or not function.is_view
        return function(*arguments, **(named or {}))


def _places(results: object) -> list[int] | None:
    """Return the addresses of tensors by name, or of none; None if there is something else among them."""
    values = [] if results is None else list(results.values()) if isinstance(results, Mapping) else [results]
    places = [value.data_ptr() for value in values if isinstance(value, torch.Tensor)]
    return places if len(places) == len(values) else None
