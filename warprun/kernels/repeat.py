"""Kernel calls on CPU that are recorded once and then made again by machine code: what CUDA graphs are on a GPU.

An update of ten environments computes for 60 microseconds. Python needs as long to get from one of its kernels to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, TypeVarTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from warprun.errors import UserError
from warprun.kernels.bound import Made, recording
from warprun.kernels.team import team

Arguments = TypeVarTuple("Arguments")
Results = TypeVar("Results")

TRIES = 10
"""Runs that are recorded before work counts as different in every run. The first ones of an agent compile kernels and make views."""
CHECKED = 100
"""One of so many runs is made by Python, to see whether the work is still the same."""


class Repeated(Generic[Results, *Arguments]):
    """CPU work that machine code repeats once it has made the same kernel calls (`Call`) twice in a row, and nothing but views besides.

    What cannot be seen from outside, the work must keep to, as for `graph.Captured`: numbers that change between runs lie in memory, which
    the host writes before the call, and the memory of the results is always the same, so the next run overwrites them. The arguments are
    hashable; each combination is recorded on its own. Raises UserError if the work makes other calls later.
    """

    def __init__(self, work: Callable[[*Arguments], Results], threads: int) -> None:
        self._work = work
        self._team = team(threads)
        self._tried: dict[tuple[*Arguments], list[Recording[Results]]] = {}
        self._repeats: dict[tuple[*Arguments], tuple[Callable[[], None], Recording[Results]]] = {}
        self._runs = 0

    def __call__(self, *arguments: *Arguments) -> Results:
        """Run the work once."""
        if arguments in self._repeats:
            repeat, former = self._repeats[arguments]
            self._runs += 1
            if self._runs % CHECKED:
                repeat()
                return former.results
            made = Recording(lambda: self._work(*arguments))
            if not made.repeats(former):
                raise UserError("an update has made other kernel calls than the same update before it; run with engine.capture=false")
            return made.results
        tried = self._tried.setdefault(arguments, [])
        if len(tried) == TRIES:
            return self._work(*arguments)
        tried.append(Recording(lambda: self._work(*arguments)))
        if len(tried) > 1 and tried[-1].repeats(tried[-2]):
            self._repeats[arguments] = self._team.repeating(tried[-1].made), tried[-1]
        return tried[-1].results


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

    def repeats(self, former: Recording[Results]) -> bool:
        """Return whether both runs made the same kernel calls, which wrote results to the same tensors, and nothing else."""
        if not self.made or self.torch_computes or former.torch_computes or (places := _places(self.results)) is None:
            return False
        return self.made == former.made and places == _places(former.results)


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
