"""Checks whether CUDA works on this machine, by the driver alone, and reads the free memory. No torch: errors are reported early."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from warprun.errors import UserError

DEVICES = ("auto", "cpu", "cuda", "cudasim")
GPU_ERRORS = {
    "CudaDriverError",
    "CUDAError",
    "NvvmError",
    "LinkerError",
    "nvJitLinkError",
    "nvvmError",
    "AcceleratorError",
    "OutOfMemoryError",
}
"""Classes of Numba, cuda.core, cuda.bindings and torch, by name: nothing of these may be imported here."""
MOST_OF_ERROR = 300
"""Characters of an error of a library."""
_NO_DEVICE = 100


def check_cuda() -> None:
    """Raise UserError, with what to install or repair, if CUDA cannot work on this machine."""
    reason = why_no_cuda()
    if reason:
        raise UserError(f"device=cuda: {reason}; device=cpu works everywhere")


SIMULATOR_LIMIT = 64
"""Most environments in the CUDA simulator, which runs every GPU thread as a Python thread."""


def prepare(device: str) -> None:
    """Set the environment variable that Numba reads at its import. Call it before importing any module that imports Numba."""
    if device == "cudasim" and "numba" not in sys.modules:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"


def why_no_cuda() -> str | None:
    """Return why CUDA cannot work on this machine, in one line; None if no problem is found."""
    driver = _driver()
    if driver is None:
        return f"no NVIDIA driver on this machine ({_library()} is missing)"
    code = driver.cuInit(0)
    if code == _NO_DEVICE:
        return "the NVIDIA driver finds no GPU (is CUDA_VISIBLE_DEVICES empty?)"
    if code:
        return f"the NVIDIA driver does not start: {_error_name(driver, code)}; `nvidia-smi` says more"
    if importlib.util.find_spec("numba_cuda") is None:
        extra = "cuda13" if cuda_version()[0] >= 13 else "cuda12"
        return f'numba-cuda is not installed; run: pip install -c constraints.txt -e ".[{extra}]" in a fresh environment'
    build = _torch_version()
    if build.endswith("+cpu"):
        return f"torch {build} is built without CUDA; install a CUDA build of torch (https://pytorch.org/get-started)"
    return None


def cuda_memory() -> int | None:
    """Return the bytes of memory of the first GPU; None if there is no GPU."""
    driver = _driver()
    device, size = ctypes.c_int(), ctypes.c_size_t()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    return None if driver.cuDeviceTotalMem_v2(ctypes.byref(size), device) else size.value


def gpu_name() -> str | None:
    """Return the name of the first GPU, by the driver, which takes no memory of it; None if there is no GPU."""
    driver = _driver()
    device, name = ctypes.c_int(), ctypes.create_string_buffer(100)
    if driver is None or driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    return None if driver.cuDeviceGetName(name, len(name), device) else name.value.decode()


def gpu_error(error: BaseException) -> str | None:
    """Return what CUDA says, on one line, if an error comes from CUDA or from a library that calls it; else None."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if not names & GPU_ERRORS and "CUDA error" not in str(error):
        return None
    return " ".join(f"{type(error).__name__}: {error}".split())[:MOST_OF_ERROR]


def _library() -> str:
    return "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(_library())
    except OSError:
        return None


def cuda_version() -> tuple[int, int]:
    """Return the newest version of CUDA that the driver knows, (0, 0) if there is no driver."""
    driver, number = _driver(), ctypes.c_int()
    if driver is not None:
        driver.cuDriverGetVersion(ctypes.byref(number))
    return number.value // 1000, number.value % 1000 // 10


def _error_name(driver: ctypes.CDLL, code: int) -> str:
    name = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(name))
    return name.value.decode() if name.value else f"error {code}"


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def available_memory() -> int:
    """Return the bytes of memory that this process can allocate at most: the free memory, or what its job may still use if that is less."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        free = next(1024 * int(line.split()[1]) for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
    return min([free, *left_in_cgroups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def left_in_cgroups(membership: Path, mounted: Path) -> Iterable[int]:
    """Yield the bytes that each memory limit leaves to this process; `membership` names its control groups, `mounted` is their folder.

    SLURM and containers limit a job through a control group (version 2 or 1) of its own or above it, and kill it without a message.
    """
    for line in membership.read_text().splitlines() if membership.exists() else ():
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = mounted / controllers
        # The files with the limit and with the usage, and the entry of `memory.stat` for cached files.
        limit, used, cache = (
            ("limit_in_bytes", "usage_in_bytes", "total_inactive_file") if controllers else ("max", "current", "inactive_file")
        )
        own = root / group.lstrip("/")
        for folder in (own, *own.parents):
            limit_file = folder / f"memory.{limit}"
            text = limit_file.read_text().strip() if limit_file.exists() else "max"
            if text != "max":
                yield max(0, int(text) - _bytes_in_use(folder, used, cache))
            if folder == root:
                break


def _bytes_in_use(folder: Path, used: str, cache: str) -> int:
    """Return the memory that a control group uses, without the cached files that the kernel drops when memory is needed."""
    usage, stat = folder / f"memory.{used}", folder / "memory.stat"
    total = int(usage.read_text()) if usage.exists() else 0
    lines = stat.read_text().splitlines() if stat.exists() else []
    return total - sum(int(line.split()[1]) for line in lines if line.split()[0] == cache)
