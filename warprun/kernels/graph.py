"""CUDA graphs: what the device does again and again, described by the host once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch

from warprun.errors import UserError

WARM_UP = 3
"""Runs before the one that is captured: by then all is loaded, compiled and allocated that is so at first use."""


class Captured:
    """Work on a GPU that runs as it is at first, is then captured in a CUDA graph, and from there on replayed.

    `work(*arguments)` must run the same kernels on the same memory and with the same numbers whenever it gets the same arguments (which
    are hashable; each set of them has a graph of its own). So what changes between runs lies on the device, where the host writes it
    before, and what the host counts it counts elsewhere. Every call is one run, those before the capture, too. What is returned is the
    graph's own memory, which the next run with these arguments writes anew.
    """

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work = work
        self._runs: Counter[tuple[Hashable, ...]] = Counter()
        self._recorded: dict[tuple[Hashable, ...], tuple[Callable[[], None], Any]] = {}

    def __call__(self, *arguments: Hashable) -> Any:
        """Run the work once."""
        if arguments not in self._recorded:
            if self._runs[arguments] < WARM_UP:
                self._runs[arguments] += 1
                return run_aside(lambda: self._work(*arguments))
            self._recorded[arguments] = record(lambda: self._work(*arguments))
        replay, result = self._recorded[arguments]
        replay()
        return result


def run_aside(work: Callable[[], Any]) -> Any:
    """Run `work` on the stream of captures, after all that came before and before all that follows: libraries set up their memory there."""
    stream = _stream_of_captures()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = work()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def record(work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Capture `work` without running it; return what runs it, on the current stream, and what it returned. Raises UserError."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=_stream_of_captures()):
            result = work()
    except Exception as error:  # torch, Numba and the driver have an error of their own each
        # Where the capture has failed, too, ending it raises an error that hides the cause.
        reason = str(error.__context__ or error).partition("\n")[0]
        raise UserError(f"a CUDA graph cannot hold the rollout or the update ({reason}); run with engine.cuda_graph=false") from error
    return graph.replay, result


@cache
def _stream_of_captures() -> torch.cuda.Stream:
    return torch.cuda.Stream()
