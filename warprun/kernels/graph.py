"""CUDA graphs: the host records a sequence of GPU work once, and the GPU replays it with one launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Generic, TypeVar, TypeVarTuple

import torch

from warprun.errors import UserError

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

WARM_UP = 3
"""Runs before the captured one. The first runs load libraries, compile kernels and allocate memory, which a capture must not do."""


class Captured(Generic[Result, *Arguments]):
    """GPU work that runs eagerly WARM_UP times, is then captured in a CUDA graph, and replayed from then on.

    `work(*arguments)` must launch the same kernels on the same memory with the same scalars whenever it gets the same arguments. The
    arguments must be hashable; each combination has its own graph. Values that change between runs must lie in device memory, which the
    host writes before the call. Host-side counters must be updated outside `work`. Every call runs the work exactly once, before and after
    the capture. A result lies in the graph's memory: the next run with the same arguments overwrites it.
    """

    def __init__(self, work: Callable[[*Arguments], Result]) -> None:
        self._work = work
        self._runs: Counter[tuple[*Arguments]] = Counter()
        self._recorded: dict[tuple[*Arguments], tuple[Callable[[], None], Result]] = {}

    def __call__(self, *arguments: *Arguments) -> Result:
        """Run the work once."""
        if arguments not in self._recorded:
            if self._runs[arguments] < WARM_UP:
                self._runs[arguments] += 1
                return run_aside(lambda: self._work(*arguments))
            self._recorded[arguments] = record(lambda: self._work(*arguments))
        replay, result = self._recorded[arguments]
        replay()
        return result


def run_aside(work: Callable[[], Result]) -> Result:
    """Run `work` on the capture stream, in order with the current stream, so that libraries allocate their workspace for that stream."""
    stream = _stream_of_captures()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = work()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def record(work: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
    """Capture `work` without running it; return a function that replays it on the current stream, and its result. Raises UserError."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=_stream_of_captures()):
            result = work()
    except Exception as error:  # torch, Numba and the driver each raise their own error class
        # If the work fails, ending the capture fails too, with an error that hides the cause.
        reason = str(error.__context__ or error).partition("\n")[0]
        raise UserError(f"a CUDA graph cannot hold the rollout or the update ({reason}); run with engine.capture=false") from error
    return graph.replay, result


@cache
def _stream_of_captures() -> torch.cuda.Stream:
    return torch.cuda.Stream()
