"""Work that is recorded once and repeated without Python: `Captured` in CUDA graphs, `Repeated` as kernel calls on CPU.

A GPU replays a graph with one launch in the place of many. On CPU machine code makes the calls: an update of ten
environments computes for 60 microseconds, and Python needs as long to get from one of its kernels to the next. Both
need the same of the work: Python computes nothing in it, and numbers that change between runs lie in memory, which the
host writes before the call.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar, TypeVarTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from warprun.errors import UserError
from warprun.kernels.bound import NEVER, Made, recording
from warprun.kernels.driver import memory_is_full
from warprun.kernels.threads import team

if TYPE_CHECKING:
    from torch._ops import OpOverload

Arguments = TypeVarTuple("Arguments")
Results = TypeVar("Results")

WARM_UP = 3
"""Runs before the captured one. The first runs load libraries, compile kernels and allocate memory, which a capture must not do."""
TRIES = 10
"""Runs in which work may become the same as in the run before. The first ones of an agent compile kernels and make views."""
CHECKED = 1000
"""One of so many runs is made by Python, to see whether the work is still the same."""
KEYS = 16
"""Combinations of arguments that may be recorded; what is recorded keeps its memory."""


class Captured(Generic[Results, *Arguments]):
    """GPU work that runs eagerly WARM_UP times, is then captured in a CUDA graph, and replayed from then on.

    `work(*arguments)` must launch the same kernels on the same memory with the same scalars whenever it gets the same arguments. The
    arguments must be hashable; each combination has its own graph. Values that change between runs must lie in device memory, which the
    host writes before the call. Host-side counters must be updated outside `work`. Every call runs the work exactly once, before and after
    the capture. A result lies in the graph's memory: the next run with the same arguments overwrites it.
    """

    def __init__(self, work: Callable[[*Arguments], Results]) -> None:
        self._work = work
        self._runs: Counter[tuple[*Arguments]] = Counter()
        self._recorded: dict[tuple[*Arguments], tuple[Callable[[], None], Results]] = {}

    def __call__(self, *arguments: *Arguments) -> Results:
        """Run the work once."""
        if arguments not in self._recorded:
            if self._runs[arguments] < WARM_UP:
                self._runs[arguments] += 1
                return run_aside(lambda: self._work(*arguments))
            self._recorded[arguments] = record(lambda: self._work(*arguments))
        replay, result = self._recorded[arguments]
        replay()
        return result


def run_aside(work: Callable[[], Results]) -> Results:
    """Run `work` on the capture stream, in order with the current stream, so that libraries allocate their workspace for that stream."""
    stream = _stream_of_captures()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = work()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def record(work: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
    """Capture `work` without running it; return a function that replays it on the current stream, and its result.

    Raises UserError if a graph cannot hold the work, and the error of the GPU if its memory is full.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        # Other threads may call CUDA meanwhile, as NCCL's watchdog does: only calls of this one may end the capture.
        with _uncollected(), torch.cuda.graph(graph, stream=_stream_of_captures(), capture_error_mode="thread_local"):
            result = work()
    except Exception as error:  # torch, Numba and the driver each raise their own error class
        # If the work fails, ending the capture fails too, with an error that hides the cause.
        cause = error.__context__ or error
        if memory_is_full(cause):
            raise cause from None
        reason = str(cause).partition("\n")[0]
        raise UserError(f"a CUDA graph cannot hold the rollout or the update ({reason}); run with engine.capture=false") from error
    return graph.replay, result


@contextmanager
def _uncollected() -> Iterator[None]:
    """Free what reference cycles hold, such as graphs of an earlier agent, before the block and never within it.

    Their ends call the driver (`cuModuleUnload`, `cudaFree`), which a capture must not see.
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def _stream_of_captures() -> torch.cuda.Stream:
    return torch.cuda.Stream()


class Repeated(Generic[Results, *Arguments]):
    """CPU work that machine code repeats once it has made the same kernel calls (`Call`) twice in a row, and torch nothing but views.

    The results are tensors that are always in the same memory, so the next run overwrites them. The arguments are hashable; each
    combination is recorded on its own. Raises UserError if the work makes other calls later.
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
        known = self._known.get(arguments)
        if recording.made is not None or (known is None and len(self._known) == KEYS):
            return self._work(*arguments)
        known = known or self._known.setdefault(arguments, _Known())
        known.runs += 1
        if known.repeat and known.last and known.runs % CHECKED:
            known.repeat()
            return known.last.results
        return self._made(known, lambda: self._work(*arguments))

    def _made(self, known: _Known[Results], work: Callable[[], Results]) -> Results:
        """Run the work by Python."""
        if known.repeat and known.last:
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
    """The recordings of the work with some arguments."""

    def __init__(self) -> None:
        self.runs = 0
        self.last: Recording[Results] | None = None
        self.repeat: Callable[[], None] | None = None
        """Makes the calls of `last`."""


class Recording(Generic[Results]):
    """The trace of a run: its kernel calls, whether torch computed something, and its results."""

    def __init__(self, work: Callable[[], Results]) -> None:
        """Run `work`."""
        watch = Watch()
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


class Watch(TorchDispatchMode):
    """Sees the operations of torch that are not only views, nor among those whose names begin with one of `others`."""

    torch_computes = False

    def __init__(self, others: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._others = others

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # To keep its compiler out of this class, torch would import it, which takes a second.
        return False

    def __torch_dispatch__(
        self,
        function: OpOverload,
        types: object,
        arguments: Sequence[object] = (),
        named: Mapping[str, object] | None = None,
    ) -> object:
        if not self.torch_computes and not function.is_view:
            self.torch_computes = not self._others or not str(function).startswith(self._others)
        return function(*arguments, **(named or {}))


def _places(results: object) -> list[int] | None:
    """Return the addresses of tensors by name, or of none; None if there is something else among them."""
    values = [] if results is None else list(results.values()) if isinstance(results, Mapping) else [results]
    places = [value.data_ptr() for value in values if isinstance(value, torch.Tensor)]
    return places if len(places) == len(values) else None
