"""Whether CUDA can work here, asked of the driver itself, and what memory is free. Light: mistakes are told before torch is loaded."""

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
    """Raise UserError, naming what to install or to repair, unless CUDA can work here."""
    reason = why_no_cuda()
    if reason:
        raise UserError(f"device=cuda: {reason}; device=cpu works everywhere")


def prepare(device: str) -> None:
    """Set what Numba reads when it is loaded; for before the import of anything that loads it."""
    if device == "cudasim" and "numba" not in sys.modules:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"


def why_no_cuda() -> str | None:
    """Return why CUDA cannot work here, in one line, or None where nothing speaks against it."""
    driver = _driver()
    if driver is None:
        return f"no NVIDIA driver on this machine ({_library()} is not there)"
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
    """Return the bytes of memory of the first GPU, or None where there is none."""
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
    """Return the bytes of memory that this process could still take: what is free, or less where a job's limit is lower."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        free = next(1024 * int(line.split()[1]) for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
    return min([free, *_cgroup_limits()])


def _cgroup_limits() -> Iterable[int]:
    # SLURM and containers limit a job through its control group (version 2, then version 1) and kill it without a word.
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
