"""Checks whether CUDA works on this machine, shares out its GPUs, and reads the free memory.

`why_no_cuda` asks the driver alone, without torch and Numba, so that most errors are reported early. Then
`launch_problem` compiles, links and launches a small kernel, and lets torch allocate memory.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path

from warprun.errors import UserError, nearest, one_line, printable, shown
from warprun.processes import on_this_machine, share_of_cores, starter

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
"""The library of the NVIDIA driver."""
DEVICES = ("auto", "cpu", "cuda", "cudasim")
GPU_ERRORS = {"CudaDriverError", "CUDAError", "NvvmError", "LinkerError", "nvJitLinkError", "nvvmError"}
GPU_ERRORS |= {"AcceleratorError", "OutOfMemoryError"}
"""Classes of Numba, cuda.core, cuda.bindings and torch, by name: nothing of these may be imported here."""
MOST_OF_ERROR = 300
"""Characters of an error of a library."""
FULL = re.compile("out of memory|OUT_OF_MEMORY")
BROKEN = re.compile(
    "illegal memory|misaligned address|unspecified launch failure|launch timed out|uncorrectable|"
    "ILLEGAL_|MISALIGNED_|INVALID_PC|INVALID_ADDRESS_SPACE|HARDWARE_STACK|LAUNCH_FAILED|LAUNCH_TIMEOUT|UNCORRECTABLE|CONTAINED|_ASSERT|"
    "MPS_|DEVICE_UNAVAILABLE|EXTERNAL_DEVICE|SYSTEM_NOT_READY|CONTEXT_IS_DESTROYED|DEINITIALIZED|ERROR_UNKNOWN"
)
"""What CUDA says of a GPU or a context that works no more: the call that says so need not be the cause."""
_NO_DEVICE = 100


GPU = re.compile(r"\d+|(GPU|MIG)-.+")
"""Names in CUDA_VISIBLE_DEVICES."""
DEVICE_FILES = Path("/dev")


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process may use: numbers, or UUIDs of GPUs or parts of one.

    They are those that CUDA_VISIBLE_DEVICES takes. CUDA is not asked: it would keep to its answer.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        # As CUDA reads it: names after one that is none do not count. SLURM writes NoDevFiles where there is no GPU.
        return list(takewhile(GPU.fullmatch, (name.strip() for name in given.split(","))))
    files = len(list(DEVICE_FILES.glob("nvidia[0-9]*")))
    # Windows Subsystem for Linux has one file for all, and nearly always one GPU.
    return [str(number) for number in range(files or int((DEVICE_FILES / "dxg").exists()))]


def take_share() -> None:
    """Use this process's share of the cores and GPUs of its machine, unless the starter has dealt them out."""
    place, count = on_this_machine()
    if starter() == "torchrun" and count > 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, share_of_cores(place, count))
    gpus = visible_gpus()
    # srun may not say how many tasks a node has: then the count is 1.
    if max(count, place + 1) <= len(gpus) and len(gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[place]


def check_cuda() -> None:
    """Raise UserError, with what to install or repair, if CUDA cannot work on this machine."""
    reason = why_no_cuda()
    if reason:
        raise UserError(f"device=cuda: {reason}; device=cpu works everywhere")


def check_device(wanted: object) -> None:
    """Raise UserError if `wanted` is not one of DEVICES; this machine is not asked."""
    name = str(wanted)
    if re.fullmatch(r"cuda:\d+", name):
        advice = f"set the variable CUDA_VISIBLE_DEVICES={name[5:]} and device=cuda"
        raise UserError(f"device={name}: a run takes the first GPU that it sees; {advice}")
    if wanted not in DEVICES:
        written = wanted if isinstance(wanted, str) else shown(wanted)
        raise UserError(f"device={written} is not one of {', '.join(DEVICES)}{nearest(name.lower().replace('gpu', 'cuda'), DEVICES)}")


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
        return f"no NVIDIA driver on this machine ({DRIVER} is missing)"
    code = driver.cuInit(0)
    if code == _NO_DEVICE:
        return "the NVIDIA driver finds no GPU (is CUDA_VISIBLE_DEVICES empty?)"
    if code:
        return f"the NVIDIA driver does not start: {_error_name(driver, code)}; `nvidia-smi` says more"
    if importlib.util.find_spec("numba_cuda") is None:
        extra = "cuda13" if cuda_version()[0] >= 13 else "cuda12"
        return f'numba-cuda is not installed; run: pip install -c constraints.txt -e ".[{extra}]" in a fresh environment'
    build = version("torch")
    if build.endswith("+cpu"):
        return f"torch {build} is built without CUDA; install a CUDA build of torch (https://pytorch.org/get-started)"
    return None


def cuda_memory() -> int | None:
    """Return the bytes of memory of the first GPU; None if there is no GPU."""
    size = ctypes.c_size_t()
    return size.value if _first_gpu_tells("cuDeviceTotalMem_v2", ctypes.byref(size)) else None


def gpu_capability() -> tuple[int, int]:
    """Return the compute capability of the first GPU, by the driver, which takes no memory of it; (0, 0) if there is no GPU."""
    return _attribute(75), _attribute(76)


def gpu_shared_bytes() -> int:
    """Return the shared memory that a block on the first GPU can have if its kernel asks for it; 0 if there is no GPU."""
    return _attribute(97)


def _attribute(number: int) -> int:
    """Return an attribute of the first GPU, by its number in CUdevice_attribute; 0 if there is no GPU."""
    value = ctypes.c_int()
    return value.value if _first_gpu_tells("cuDeviceGetAttribute", ctypes.byref(value), number) else 0


def gpu_name() -> str | None:
    """Return the name of the first GPU, by the driver, which takes no memory of it; None if there is no GPU."""
    name = ctypes.create_string_buffer(100)
    return name.value.decode() if _first_gpu_tells("cuDeviceGetName", name, len(name)) else None


def free_cuda_memory(number: int) -> int | None:
    """Return the bytes that are free on the GPU with this number among those that this process may use; None if it does not tell.

    CUDA tells them to a process with a context on the GPU, which is made for that and given back.
    """
    driver, device, context = _driver(), ctypes.c_int(), ctypes.c_void_p()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number):
        return None
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return None
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    try:
        if driver.cuCtxPushCurrent_v2(context):
            return None  # the current context is that of the caller
        told = not driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
    return free.value if told else None


def _first_gpu_tells(function: str, *arguments: object) -> bool:
    """Call a function of the driver that writes something of the first GPU to `arguments`; return whether it did."""
    driver, device = _driver(), ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return False
    return getattr(driver, function)(*arguments, device) == 0


def gpu_error(error: BaseException) -> str | None:
    """Return what CUDA says, on one line, if an error comes from CUDA or from a library that calls it; else None."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if not names & GPU_ERRORS and "CUDA error" not in str(error):
        return None
    return " ".join(f"{type(error).__name__}: {error}".split())[:MOST_OF_ERROR]


def memory_is_full(error: BaseException) -> bool:
    """Return whether an error says that the memory of the GPU is full."""
    return FULL.search(gpu_error(error) or "") is not None


def is_refusal(error: BaseException) -> bool:
    """Return whether CUDA refuses what it was asked for, and would do something else: the GPU works, and has memory left."""
    reason = gpu_error(error)
    return reason is not None and not BROKEN.search(reason) and not FULL.search(reason)


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(DRIVER)
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


def available_memory() -> int:
    """Return the bytes of memory that this process can allocate at most: the free memory, or what its job may still use if that is less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = next((1024 * int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemAvailable")), whole)
    return min([free, *left_in_cgroups("/proc/self/cgroup", "/sys/fs/cgroup")])


def _lines(file: str) -> list[str]:
    """Return the lines of a file of the kernel, which is read for each run of a sweep; none if it is not there."""
    try:
        with open(file, "rb") as opened:
            return opened.read().decode().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []


def left_in_cgroups(membership: str, mounted: str) -> Iterable[int]:
    """Yield the bytes that each memory limit leaves to this process; `membership` names its control groups, `mounted` is their folder.

    SLURM and containers limit a job through a control group (version 2 or 1) of its own or above it, and kill it without a message.
    """
    for line in _lines(membership):
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = os.path.join(mounted, controllers).rstrip("/")
        # The files with the limit and with the usage, and the entry of `memory.stat` for cached files.
        limit, used, cache = (
            ("limit_in_bytes", "usage_in_bytes", "total_inactive_file") if controllers else ("max", "current", "inactive_file")
        )
        names = group.strip("/").split("/") if group.strip("/") else []
        for depth in range(len(names), -1, -1):
            folder = "/".join([root, *names[:depth]])
            for text in _lines(f"{folder}/memory.{limit}"):
                if text != "max":
                    yield max(0, int(text) - _bytes_in_use(folder, used, cache))


def _bytes_in_use(folder: str, used: str, cache: str) -> int:
    """Return the memory that a control group uses, without the cached files that the kernel drops when memory is needed."""
    cached = (int(line.split()[1]) for line in _lines(f"{folder}/memory.stat") if line.split()[0] == cache)
    return sum(map(int, _lines(f"{folder}/memory.{used}"))) - sum(cached)


LIBRARIES = ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink", "nvidia-nvjitlink-cu12")
"""Packages of libnvvm, which compiles kernels, and of nvJitLink, which links them."""
FRESH = 'install one of the extras cuda12 and cuda13 in a fresh environment: pip install -c constraints.txt -e ".[cuda12]"'
PROBED = 2**18
"""float32 elements that torch allocates, 1 MiB."""


def launch_problem() -> str | None:
    """Return why no kernel runs on the GPU, and what to do, in one line; None if one does. The driver must be there."""
    stages: tuple[tuple[Callable[[], None], str, str], ...] = (
        (_torch, "torch cannot use the GPU", "`nvidia-smi` shows who else does"),
        (_numba, f"Numba cannot be imported for CUDA ({installed()})", FRESH),
        (_link, f"no kernel compiles and links ({installed()})", FRESH),
        (_launch, "the GPU runs no kernel", "`nvidia-smi` shows who else uses it"),
    )
    # torch warns of what is then raised, and Numba of small launches.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for stage, what, advice in stages:
            try:
                stage()
            except Misfit as misfit:
                return str(misfit)
            except Exception as error:  # each library raises classes of its own, and AttributeError if versions do not fit
                return f"{what}: {printable(one_line(error), MOST_OF_ERROR)}; {advice}"
    return None


class Misfit(Exception):
    """A problem and what to do about it, in one line."""


def link(capability: tuple[int, int]) -> bytes:
    """Return a small kernel as machine code of a compute capability, linked as Numba links all kernels. Needs no GPU.

    Raises whatever numba-cuda and its libraries raise, and Misfit if a library is missing.
    """
    from cuda.core import Linker, LinkerOptions, ObjectCode
    from numba import cuda, float32
    from numba.cuda.cudadrv.driver import _have_nvjitlink

    if not _have_nvjitlink():
        raise Misfit(f"nvJitLink is missing or older than 12.3 ({installed()}); {FRESH}")
    code, _ = cuda.compile(_add_one, (float32[:],), cc=capability, device=False, abi="numba", output="ltoir")
    options = LinkerOptions(arch=f"sm_{capability[0]}{capability[1]}", link_time_optimization=True)
    linker = Linker(ObjectCode.from_ltoir(code), options=options)
    try:
        return bytes(linker.link("cubin").code)
    finally:
        linker.close()


def installed() -> str:
    """Return the packages that compile and link kernels, with their versions."""
    found = []
    for package in ("numba", "numba-cuda", *LIBRARIES):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def _add_one(x):  # type: ignore[no-untyped-def]
    x[0] += 1.0


def _torch() -> None:
    import torch

    built = torch.version.cuda
    if built is None:
        raise Misfit(f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch (https://pytorch.org/get-started)")
    of_driver = cuda_version()
    if of_driver[0] < int(built.partition(".")[0]):
        raise Misfit(
            f"the NVIDIA driver knows CUDA {of_driver[0]}.{of_driver[1]}, and torch {torch.__version__} is built for CUDA {built}; "
            'update the driver, or run: pip install -c constraints.txt -e ".[cuda12]" in a fresh environment'
        )
    capability, built_for = torch.cuda.get_device_capability(), torch.cuda.get_arch_list()
    if built_for and not any(_runs(code, capability) for code in built_for):
        oldest = min(_capability(code) for code in built_for)
        what, advice = "newer", "install a newer torch"
        if capability < oldest:
            what, advice = "too old", f"a GPU of compute capability {_dotted(oldest)} or newer works, and device=cpu everywhere"
        raise Misfit(
            f"{torch.cuda.get_device_name()} has compute capability {_dotted(capability)}, which is {what} for torch"
            f" {torch.__version__} (built for {', '.join(built_for)}); {advice}"
        )
    (torch.zeros(PROBED, device="cuda") + 1.0)[0].item()


def _capability(code: str) -> tuple[int, int]:
    """Return the compute capability of code of torch: (9, 0) for sm_90a."""
    return divmod(int(re.sub(r"\D", "", code.partition("_")[2])), 10)


def _runs(code: str, capability: tuple[int, int]) -> bool:
    """Return whether code of torch runs on a GPU: machine code (sm_) on those of the same generation, PTX (compute_) on all newer ones."""
    made_for = _capability(code)
    return made_for <= capability and (code.startswith("compute_") or made_for[0] == capability[0])


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _numba() -> None:
    from numba import cuda
    from numba.cuda.core import config

    from warprun.kernels import thrift

    thrift.spare_cuda()
    # Numba warns of every launch of fewer than 128 blocks, and an environment may need no more.
    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
    cuda.current_context()


def _link() -> None:
    import torch

    link(torch.cuda.get_device_capability())


def _launch() -> None:
    import torch
    from numba import cuda

    tensor = torch.zeros(PROBED, device="cuda")
    stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
    cuda.jit(_add_one)[1, 1, stream](cuda.as_cuda_array(tensor, sync=False))
    found = tensor[0].item()
    if found != 1.0:
        raise Misfit(f"the GPU computes 0 + 1 = {found}; `nvidia-smi` and the system's log say more")
