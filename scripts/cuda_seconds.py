"""Processor seconds in which the CUDA kernels of a run compile for sm_90, without a GPU (extra `ptx`), and until K cores have them all.

    python scripts/cuda_seconds.py env=cartpole agent=a2c [--cores K ...]

A run compiles the kernels of its environment while processes beside it compile those of the learner, here the longest first; then all
share the rest (warprun/kernels/ahead.py). Their start is left out."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from common import require, settings, table

from warprun.errors import UserError
from warprun.kernels.ahead import helpers
from warprun.kernels.without_gpu import compiling_for


def seconds_of(kernel: Any, types: Sequence[object]) -> tuple[float, float, float]:
    """Compile a kernel; return the seconds of Numba, libnvvm and nvJitLink."""
    from numba.cuda import dispatcher
    from numba.cuda.cudadrv import driver, nvvm

    spent = {"compile_ir": 0.0, "complete": 0.0}

    def timed(place: object, name: str) -> Any:
        action: Callable[..., Any] = getattr(place, name)

        def call(*given: Any, **options: Any) -> Any:
            began = time.process_time()
            result = action(*given, **options)
            spent[name] += time.process_time() - began
            return result

        return patch.object(place, name, call)

    began = time.process_time()
    with compiling_for(None, (9, 0)), timed(nvvm, "compile_ir"), timed(driver._Linker, "complete"):
        dispatcher._Kernel(kernel.py_func, types, **kernel.targetoptions).bind()
    return time.process_time() - began - sum(spent.values()), spent["compile_ir"], spent["complete"]


def until_compiled(own: float, others: Sequence[float], cores: int) -> float:
    """Return the seconds until all is compiled, of a run that compiles for `own` seconds itself before it shares `others`."""
    free, left = [own] + [0.0] * helpers(cores, on_gpu=True), deque(sorted(others, reverse=True))
    while left:
        first = free.index(min(free))
        free[first] += left.popleft() if first else left.pop()
    return max(free)


def main(overrides: Sequence[str], cores: Sequence[int]) -> None:
    """Compile the kernels and print their times. Raises UserError."""
    from cuda_launches import of_learner, of_run
    from numba import cuda

    launches = {(each.kernel.py_func.__module__, each.name, each.types): each for each in of_run(*overrides)}
    seconds_of(cuda.jit(lambda: None), ())  # the first compilation imports the rest of Numba
    found = [(each, seconds_of(each.kernel, each.types)) for each in launches.values()]
    rows = [(each.name, *(f"{seconds:.2f}" for seconds in (*spent, sum(spent)))) for each, spent in found]
    print(table(("kernel", "Numba, s", "libnvvm, s", "nvJitLink, s", "all, s"), rows))
    own, others = ([sum(spent) for each, spent in found if of_learner(each) == learner] for learner in (False, True))
    print(f"all kernels: {sum(own + others):.1f} s")
    for number in cores:
        print(f"--cores {number}: {until_compiled(sum(own), others, number):.1f} s")


if __name__ == "__main__":
    chosen = settings(__doc__, "overrides*", cores=[1, 2, 4])
    require("numba_cuda", "numba-cuda")
    try:
        main(chosen.overrides, chosen.cores)
    except UserError as error:
        print(f"cuda_seconds: {error}", file=sys.stderr)
        sys.exit(2)
