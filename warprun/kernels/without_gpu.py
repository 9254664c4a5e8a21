"""Compiles CUDA kernels in a process that uses no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace


@contextmanager
def compiling_for(runtime: object, capability: tuple[int, int]) -> Iterator[None]:
    """Let numba-cuda compile for a GPU of a compute capability, and put into its cache what a process that uses one finds there.

    numba-cuda asks the GPU of its process only for the capability, and loads on it what it has compiled. `runtime`: the version of the CUDA
    runtime in the keys of the cache.
    """
    from numba.cuda import codegen, dispatcher

    from warprun.kernels import thrift

    thrift.spare_cuda()
    device = SimpleNamespace(compute_capability=capability)
    stand_ins = (
        (dispatcher, "get_current_device", lambda: device),
        (codegen, "devices", SimpleNamespace(get_context=lambda: SimpleNamespace(device=device))),
        (codegen.JITCUDACodegen, "magic_tuple", lambda self: (runtime, capability)),
        (dispatcher._Kernel, "bind", lambda kernel: kernel.library.get_cubin()),
    )
    with ExitStack() as stack:
        for place, name, stand_in in stand_ins:
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, stand_in)
        yield
