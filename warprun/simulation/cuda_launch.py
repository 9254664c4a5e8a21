"""Launch the kernels of a module on a CUDA GPU or in the simulator: how many blocks and threads, on which stream, and what failed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from numba import cuda

from warprun.errors import UserError
from warprun.kernels import ahead
from warprun.kernels import compile as kernels
from warprun.kernels.driver import gpu_error, gpu_shared_bytes, is_refusal
from warprun.kernels.mlp_cuda import SHARED_BYTES
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.launches import Launch, recording

if TYPE_CHECKING:
    from numba.cuda.dispatcher import CUDADispatcher

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
THREADS_PER_BLOCK = 128
"""For one thread per environment: four warps, enough to hide latency with several blocks on a multiprocessor."""
WARP = 32
MOST_THREADS = 1024
"""Threads of a block on every GPU, if a kernel has few registers."""


class Launcher:
    """Launches the kernels of a module on torch's current stream. Raises UserError if the GPU refuses one."""

    def __init__(self, module: ModuleType, plan: ArrayPlan) -> None:
        self._module = module
        self._plan = plan
        self._grids: dict[str, tuple[int, int]] = {}

    def each(self, name: str, arguments: Sequence[object]) -> None:
        """Launch a kernel over all environments, in blocks as large as its registers allow."""
        self.on(name, self._grids.get(name), arguments)

    def on(self, name: str, grid: tuple[int, int] | None, arguments: Sequence[object], shared_bytes: int = 0) -> None:
        """Launch a kernel on a grid: blocks, and threads of a block; None: that of `each`, which is kept."""
        owner = self._environment()
        if grid is None:
            with refusals(name, owner):
                grid = self._grids[name] = grid_for(self._plan, most_threads(getattr(self._module, name), arguments))
        start(Launch(self._module, name, grid, arguments, shared_bytes, owner))

    def _environment(self) -> str:
        """Return the name of the environment, after which the file of its kernels is called."""
        return Path(self._module.__file__ or "").stem.removesuffix("_kernels")


def launch(module: ModuleType, name: str, grid: tuple[int, int], arguments: Sequence[object], shared_bytes: int = 0) -> None:
    """Launch a kernel that is no environment's on torch's current stream, on a grid of blocks and threads of a block. Raises UserError if
    the GPU refuses it."""
    start(Launch(module, name, grid, arguments, shared_bytes, "the learner"))


def start(launch: Launch) -> None:
    """Launch a kernel on torch's current stream. Raises UserError if the GPU refuses it."""
    with refusals(launch.name, launch.owner):
        kernel = getattr(launch.module, launch.name)
        allow(kernel, launch.arguments, launch.shared_bytes)
        blocks, threads = launch.grid
        grid = (blocks, launch.members) if launch.members > 1 else blocks
        kernel[grid, threads, current_stream(), launch.shared_bytes](*launch.arguments)
    if recording.made is not None:
        recording.made.append(launch)


def want(module: ModuleType, name: str, arguments: Sequence[object]) -> None:
    """Let another process compile a kernel of `launch` for arguments of the types of these (`kernels.ahead`)."""
    if not SIMULATED:
        ahead.want(module, name, [getattr(module, name).typeof_pyval(argument) for argument in arguments])


@contextmanager
def refusals(name: str, owner: str) -> Iterator[None]:
    """Turn what the GPU says against a kernel of `owner` into a UserError; other errors pass, such as that of an earlier kernel."""
    try:
        yield
    except Exception as error:  # CUDA's Python libraries raise classes of their own
        if not is_refusal(error):
            raise
        reason = gpu_error(error)
        raise UserError(f"the GPU refuses the kernel {name} of {owner}: {reason}; device=cpu works everywhere") from error


def module_for(name: str, source: str, functions: Mapping[str, object]) -> ModuleType:
    """Return a module of CUDA kernels that are no environment's, see `compile.load_module`; for the simulator, of plain functions."""
    build = kernels.plain_function if SIMULATED else kernels.kernel_function
    return kernels.load_module(name, source, {**functions, "CACHE": not SIMULATED}, build)


def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a GPU has; of the simulator 1."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def most_threads(kernel: CUDADispatcher, arguments: Sequence[object]) -> int:
    """Return how many threads a block of a kernel can have, a multiple of WARP: the driver knows by the registers that it was compiled to.

    Compiles the kernel for these arguments if it is not.
    """
    if SIMULATED:
        return MOST_THREADS
    compiled = kernel.compile(tuple(kernel.typeof_pyval(argument) for argument in arguments))
    return int(compiled.max_threads_per_block) // WARP * WARP


def allow(kernel: CUDADispatcher, arguments: Sequence[object], shared_bytes: int) -> None:
    """Let blocks of a kernel have more shared memory than every kernel may ask for, if they do. Compiles the kernel if it is not."""
    # A kernel may have shared memory of a fixed size beside.
    if SIMULATED or shared_bytes <= SHARED_BYTES // 2 or kernel in _allowed:
        return
    from numba.cuda.cudadrv.driver import binding, driver

    compiled = kernel.compile(tuple(kernel.typeof_pyval(argument) for argument in arguments))
    function = compiled._codelibrary.get_cufunc()
    limit = binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    # All that the GPU has, because the next launch may ask for more.
    most = gpu_shared_bytes() - function.attrs.shared
    driver.cuKernelSetAttribute(limit, most, function.handle, function.device.id)
    _allowed.add(kernel)


_allowed: WeakSet[CUDADispatcher] = WeakSet()


def grid_for(plan: ArrayPlan, most: int = MOST_THREADS) -> tuple[int, int]:
    """Return blocks and threads per block of a launch for all environments, with no more than `most` threads."""
    actors = max(group.size for group in plan.environment.groups)
    if actors == 1:
        threads = min(most, THREADS_PER_BLOCK)
        return -(-plan.n_envs // threads), threads
    return plan.n_envs, min(most, -(-actors // WARP) * WARP)


def current_stream() -> object:
    """Return torch's current stream as Numba takes it."""
    # Not cached: torch has another current stream while a CUDA graph is captured.
    return 0 if SIMULATED else cuda.external_stream(torch.cuda.current_stream().cuda_stream)


def on_device(value: object) -> object:
    """Return a value as kernels take it: tensors as arrays on the same memory, in NamedTuples, too."""
    if isinstance(value, torch.Tensor):
        return value.numpy() if SIMULATED else cuda.as_cuda_array(value, sync=False)
    return value._make(map(on_device, value)) if isinstance(value, tuple) and hasattr(value, "_make") else value
