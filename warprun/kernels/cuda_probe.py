"""Whether CUDA works on this machine: a small kernel is compiled, linked and launched, and torch allocates memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch

from warprun.kernels.driver import MOST_OF_ERROR, cuda_version

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
                return f"{what}: {_line(error)}; {advice}"
    return None


class Misfit(Exception):
    """What is wrong and what to do, in one line."""


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
    built = torch.version.cuda
    if built is None:
        raise Misfit(f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch (https://pytorch.org/get-started)")
    of_driver = cuda_version()
    if of_driver[0] < int(built.partition(".")[0]):
        raise Misfit(
            f"the NVIDIA driver knows CUDA {of_driver[0]}.{of_driver[1]}, and torch {torch.__version__} is built for CUDA {built}; "
            'update the driver, or run: pip install -c constraints.txt -e ".[cuda12]" in a fresh environment'
        )
    (torch.zeros(PROBED, device="cuda") + 1.0)[0].item()


def _numba() -> None:
    from numba import cuda

    cuda.current_context()


def _link() -> None:
    link(torch.cuda.get_device_capability())


def _launch() -> None:
    from numba import cuda

    tensor = torch.zeros(PROBED, device="cuda")
    stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
    cuda.jit(_add_one)[1, 1, stream](cuda.as_cuda_array(tensor, sync=False))
    found = tensor[0].item()
    if found != 1.0:
        raise Misfit(f"the GPU computes 0 + 1 = {found}; `nvidia-smi` and the system's log say more")


def _line(error: Exception) -> str:
    """Return an error of a library as one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= MOST_OF_ERROR else f"{text[:MOST_OF_ERROR]}..."
