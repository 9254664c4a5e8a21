"""The choice of a device: whatever fails on the way to a running kernel is the reason, in one line, and `auto` takes the CPU."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from warprun.errors import UserError
from warprun.kernels import driver
from warprun.kernels.driver import gpu_error
from warprun.simulation import device
from warprun.simulation.device import choose


class Driver:
    """Stands for libcuda.so.1."""

    def __init__(self, code: int = 0, version: int = 13000) -> None:
        self.code, self.version = code, version

    def cuInit(self, flags: int) -> int:
        return self.code

    def cuGetErrorName(self, code: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        return 0

    def cuDriverGetVersion(self, number: Any) -> int:
        number._obj.value = self.version
        return 0


def good() -> None:
    pass


def failing(error: Exception) -> Any:
    def stage() -> None:
        warnings.warn("a library complains", stacklevel=1)
        raise error

    return stage


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stand for a machine on which everything works."""
    monkeypatch.setattr(driver, "_driver", lambda: Driver())
    monkeypatch.setattr(driver, "version", lambda package: "2.13.0")
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: object())
    for stage in ("_torch", "_numba", "_link", "_launch"):
        monkeypatch.setattr(driver, stage, good)
    device.cuda_problem.cache_clear()
    yield
    device.cuda_problem.cache_clear()


def test_cuda_is_taken_where_a_kernel_has_run() -> None:
    assert choose("auto").kind == choose("cuda").kind == "cuda"


OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.\nGPU 0 has 0 bytes free")
FAILURES = {
    "busy": ("_torch", RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nsee the log"), "busy or unavailable"),
    "full": ("_torch", OUT_OF_MEMORY, "out of memory"),
    "no torch for this GPU": ("_torch", RuntimeError("CUDA error: no kernel image is available"), "no kernel image"),
    "versions that do not fit": ("_numba", AttributeError("module 'numba' has no attribute 'x'"), "AttributeError: module 'numba'"),
    "import": ("_numba", ImportError("libnvJitLink.so.13: cannot open"), "ImportError: libnvJitLink.so.13"),
    "link": ("_link", RuntimeError("nvJitLink: Unsupported .version 9.5; current version is '8.8'"), "Unsupported .version 9.5"),
    "old driver": ("_launch", RuntimeError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION"), "UNSUPPORTED_PTX_VERSION"),
}


@pytest.mark.parametrize(("stage", "error", "told"), FAILURES.values(), ids=FAILURES)
def test_whatever_fails_is_the_reason(stage: str, error: Exception, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, stage, failing(error))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = choose("auto")
    assert chosen.kind == "cpu"
    assert chosen.why.startswith("no CUDA: ") and told in chosen.why and "\n" not in chosen.why
    with pytest.raises(UserError, match="device=cuda: ") as refused:
        choose("cuda")
    assert told in str(refused.value)


def test_libraries_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.13.0", "nvidia-nvvm": "13.5.37", "nvidia-nvjitlink-cu12": "12.9.86", "numba-cuda": "0.30.4", "numba": "0.68.1"}

    def version(package: str) -> str:
        if package not in versions:
            raise driver.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(driver, "version", version)
    monkeypatch.setattr(driver, "_link", failing(RuntimeError("Unsupported .version 9.5")))
    problem = device.cuda_problem() or ""
    assert "nvidia-nvvm 13.5.37" in problem and "nvidia-nvjitlink-cu12 12.9.86" in problem and "fresh environment" in problem


@pytest.fixture
def its_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask torch, as a GPU machine does."""
    monkeypatch.undo()
    monkeypatch.setattr(driver, "_driver", lambda: Driver(version=12040))


@pytest.mark.parametrize(
    ("built", "told"), [(None, "is built without CUDA"), ("13.0", "the NVIDIA driver knows CUDA 12.4, and torch .* is built for CUDA 13.0")]
)
def test_a_torch_that_does_not_fit_the_driver(built: str | None, told: str, its_torch: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", built)
    with pytest.raises(driver.Misfit, match=told):
        driver._torch()


DRIVERS = {
    "none": (lambda: None, "no NVIDIA driver"),
    "no GPU": (lambda: Driver(100), "finds no GPU"),
    "mismatch": (lambda: Driver(803), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
}


@pytest.mark.parametrize(("found", "told"), DRIVERS.values(), ids=DRIVERS)
def test_the_driver_is_asked_first_and_nothing_is_imported(found: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_driver", found)
    monkeypatch.setattr(device, "launch_problem", None)  # a call would fail
    assert told in choose("auto").why


def test_numba_cuda_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(driver, "_driver", lambda: Driver(version=12080))
    assert '".[cuda12]"' in choose("auto").why


def test_a_gpu_that_computes_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_launch", failing(driver.Misfit("the GPU computes 0 + 1 = 0.0")))
    assert device.cuda_problem() == "the GPU computes 0 + 1 = 0.0"


@pytest.mark.parametrize(
    "error",
    [type("CudaAPIError", (type("CudaDriverError", (Exception,), {}),), {})("[701] launch"), OUT_OF_MEMORY, RuntimeError("CUDA error: x")],
)
def test_errors_of_cuda_are_known(error: Exception) -> None:
    told = gpu_error(error)
    assert told is not None and "\n" not in told


def test_other_errors_are_not_those_of_cuda() -> None:
    assert gpu_error(RuntimeError("shapes do not fit")) is None
    assert gpu_error(KeyError(types)) is None
