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
        extra = "cuda13" if _driver_version(driver) >= 13 else "cuda12"
        return f'numba-cuda is not installed; run: pip install "warprun[{extra}]"'
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


def _library() -> str:
    return "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(_library())
    except OSError:
        return None


def _driver_version(driver: ctypes.CDLL) -> int:
    number = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    return number.value // 1000


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
    """Return the bytes of memory that this process can allocate at most: the free memory, or the limit of its job if that is lower."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        free = next(1024 * int(line.split()[1]) for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
    return min([free, *_cgroup_limits()])


def _cgroup_limits() -> Iterable[int]:
    # SLURM and containers limit a job through its control group (version 2, then version 1) and kill it without a message.
    membership = Path("/proc/self/cgroup")
    for line in membership.read_text().splitlines() if membership.exists() else ():
        _, controllers, group = line.split(":", 2)
        if controllers in ("", "memory"):
            root = Path("/sys/fs/cgroup") / controllers
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            for folder in (root / group.lstrip("/"), root):
                limit = folder / name
                text = limit.read_text().strip() if limit.exists() else "max"
                if text != "max":
                    yield int(text)
