"""Processor seconds in which the CUDA kernels of a run compile for sm_90, without a GPU (extra `ptx`).

python scripts/cuda_seconds.py env=cartpole agent=a2c [--float32]

`--float32` computes layers as on a GPU without tensor cores for bfloat16.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from common import require, settings, stop, table

from warprun.errors import UserError
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


def main(overrides: Sequence[str], capability: tuple[int, int]) -> None:
    """Compile the kernels as they are for a GPU of a compute capability, and print their times. Raises UserError."""
    from cuda_launches import of_run
    from numba import cuda

    made = of_run(*overrides, capability=capability)
    launches = {(each.kernel.py_func.__module__, each.name, each.types): each for each in made}
    seconds_of(cuda.jit(lambda: None), ())  # the first compilation imports the rest of Numba
    found = [(each.name, *seconds_of(each.kernel, each.types)) for each in launches.values()]
    rows = [(name, *(f"{seconds:.2f}" for seconds in (*spent, sum(spent)))) for name, *spent in found]
    print(table(("kernel", "Numba, s", "libnvvm, s", "nvJitLink, s", "all, s"), rows))
    print(f"all kernels: {sum(sum(spent) for _, *spent in found):.1f} s")


if __name__ == "__main__":
    chosen = settings(__doc__, "overrides*", float32=False)
    require("numba_cuda", "numba-cuda")
    try:
        main(chosen.overrides, (7, 5) if chosen.float32 else (9, 0))
    except UserError as error:
        stop(error)
