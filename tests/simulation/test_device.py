"""The choice of a device, and launches on it: reasons in one line, blocks that fit, errors that name the kernel."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.environments import market
from warprun.envs import cartpole
from warprun.errors import UserError
from warprun.kernels import driver
from warprun.kernels.driver import gpu_error
from warprun.simulation import cuda_launch, device
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.targets import target_for
from warprun.simulation.cuda_launch import Launcher, grid_for
from warprun.simulation.device import choose


class Driver:
    def __init__(self, code: int = 0, version: int = 13000) -> None:
        self.code, self.version = code, version
        self.contexts: list[int] = []
        self.current, self.pushes = ["the caller's"], True

    def cuInit(self, flags: int) -> int:
        return self.code

    def cuGetErrorName(self, code: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = 10 + number
        return int(number > 1)

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self.contexts.append(device.value)
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.current += ["a new one"] * self.pushes
        return int(not self.pushes)

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        free._obj.value = 1000 * self.contexts[-1]
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        self.current.pop()
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:
        self.contexts.remove(device.value)
        return 0

    def cuDriverGetVersion(self, number: Any) -> int:
        number._obj.value = self.version
        return 0


READY = {stage: getattr(driver, stage) for stage in ("_torch", "_numba", "_link", "_launch")}
"""What makes a GPU ready, and finds what is wrong with it."""


def good() -> None:
    pass


def failing(error: Exception) -> Any:
    def stage() -> None:
        warnings.warn("a library complains", stacklevel=1)
        raise error

    return stage


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(driver, "_driver", lambda: Driver())
    monkeypatch.setattr(driver, "version", lambda package: "2.13.0")
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: object())
    for stage in READY:
        monkeypatch.setattr(driver, stage, good)
    device.cuda_problem.cache_clear()
    yield
    device.cuda_problem.cache_clear()


def test_the_free_memory_of_each_gpu_is_asked_and_leaves_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Driver()
    monkeypatch.setattr(driver, "_driver", lambda: asked)
    assert [driver.free_cuda_memory(number) for number in (0, 1, 2)] == [10_000, 11_000, None] and not asked.contexts
    asked.pushes = False
    assert driver.free_cuda_memory(0) is None and not asked.contexts
    assert asked.current == ["the caller's"]
    monkeypatch.setattr(driver, "_driver", lambda: Driver(code=100))
    assert driver.free_cuda_memory(0) is None
    monkeypatch.setattr(driver, "_driver", lambda: None)
    assert driver.free_cuda_memory(0) is None


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


GENERATIONS = {
    "Pascal": ((6, 1), ["sm_75", "sm_90"], "has compute capability 6.1, which is too old for torch .* 7.5 or newer works, and device=cpu"),
    "to come": ((15, 0), ["sm_75", "sm_120"], "15.0, which is newer for torch .* install a newer torch"),
    "Ada by code for Ampere": ((8, 9), ["sm_80", "sm_90a"], ""),
    "to come, by PTX": ((15, 0), ["sm_90", "compute_120"], ""),
}


@pytest.mark.parametrize(("capability", "built_for", "told"), GENERATIONS.values(), ids=GENERATIONS)
def test_a_gpu_that_is_too_old_or_too_new(
    capability: tuple[int, int], built_for: list[str], told: str, its_torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, found in {"get_device_capability": capability, "get_arch_list": built_for, "get_device_name": "Tesla"}.items():
        monkeypatch.setattr(torch.cuda, name, lambda found=found: found)
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    monkeypatch.setattr(driver, "PROBED", 1)
    monkeypatch.setattr(torch, "zeros", lambda size, device: torch.ones(size))
    if not told:
        driver._torch()
        return
    with pytest.raises(driver.Misfit, match=told):
        driver._torch()


@pytest.mark.parametrize("given", ["cuda:1", torch.device("cuda:1")])
def test_another_gpu_is_chosen_by_a_variable(given: object) -> None:
    with pytest.raises(UserError, match=r"^device=cuda:1: .* set the variable CUDA_VISIBLE_DEVICES=1 and device=cuda$"):
        driver.check_device(given)


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


def test_errors_of_cuda_are_known() -> None:
    of_numba = type("CudaAPIError", (type("CudaDriverError", (Exception,), {}),), {})("[701] launch")
    for error in (of_numba, OUT_OF_MEMORY, RuntimeError("CUDA error: x")):
        told = gpu_error(error)
        assert told is not None and "\n" not in told
    assert gpu_error(RuntimeError("shapes do not fit")) is None and gpu_error(KeyError(types)) is None


REGISTERS = 65536
"""Of a multiprocessor; a launch of a block that needs more fails (CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)."""


class Kernel:
    """Stands for a compiled kernel of some registers."""

    def __init__(self, registers: int) -> None:
        self.max_threads_per_block = min(1024, REGISTERS // registers)
        self.launched: list[tuple[int, int]] = []
        self.compiled = 0

    def typeof_pyval(self, value: object) -> type:
        return type(value)

    def compile(self, signature: tuple[type, ...]) -> Kernel:
        self.compiled += 1
        return self

    def __getitem__(self, configuration: Any) -> Any:
        blocks, threads, *_ = configuration
        if threads > self.max_threads_per_block:
            raise type("CUDAError", (Exception,), {})("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
        return lambda *arguments: self.launched.append((blocks, threads))


def launcher(kernel: Kernel, environment: Any, n_envs: int, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    monkeypatch.setattr(cuda_launch, "SIMULATED", False)
    monkeypatch.setattr(cuda_launch, "current_stream", lambda: 0)
    module = ModuleType("kernels")
    module.__file__ = "/cache/market-0123/market_kernels.py"
    vars(module)["step"] = kernel
    return Launcher(module, ArrayPlan(environment, target_for(environment, "cuda"), n_envs, 4))


class Crowd:
    """A plan of one block of 1,000 actors for each of three environments."""

    n_envs = 3

    class environment:
        groups = (type("Group", (), {"size": 1000}),)


@pytest.mark.parametrize(("registers", "threads"), [(32, 1024), (76, 832), (168, 384), (256, 256)])
def test_a_block_of_many_actors_has_the_threads_that_its_registers_allow(
    registers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(registers)
    launch = launcher(kernel, market.environment, 3, monkeypatch)
    launch._plan = Crowd  # type: ignore[assignment]
    launch.each("step", (1, 2.0))
    launch.each("step", (1, 2.0))
    assert kernel.launched == [(3, threads)] * 2
    assert threads * registers <= REGISTERS
    assert kernel.compiled == 1


@pytest.mark.parametrize("most", [32, 96, 128, 1024])
def test_every_environment_has_a_thread(most: int) -> None:
    plan = ArrayPlan(cartpole.environment(), target_for(cartpole.environment(), "cuda"), 1000, 4)
    blocks, threads = grid_for(plan, most)
    assert threads <= most
    assert (blocks - 1) * threads < 1000 <= blocks * threads


def test_an_error_names_the_kernel_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launcher(Kernel(255), market.environment, 3, monkeypatch)
    with pytest.raises(UserError, match=r"the GPU refuses the kernel step of market: CUDAError: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
        launch.on("step", (3, 1024), ())


BROKEN = {
    "an earlier kernel": "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
    "the memory of the card": "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered",
    "off the bus": "CUDA_ERROR_UNKNOWN: unknown error",
    "too long beside a screen": "CUDA_ERROR_LAUNCH_TIMEOUT: the launch timed out and was terminated",
    "full": "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
}


@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN)
def test_a_kernel_is_not_blamed_for_what_its_launch_is_told(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are asynchronous: the launch that hears of a failure is not its cause, and no mistake of the user."""
    error = type("CUDAError", (Exception,), {})(said)
    kernel = type("Failing", (), {"__getitem__": lambda self, key: failing(error)})()
    launch = launcher(kernel, market.environment, 3, monkeypatch)
    with warnings.catch_warnings(), pytest.raises(type(error)):
        warnings.simplefilter("ignore")
        launch.on("step", (3, 32), ())


def test_kernels_are_launched_on_the_current_stream_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is another one while a graph is captured: a stream that was kept would launch beside the capture."""
    current = [0, 7, 7, 0]
    monkeypatch.setattr(cuda_launch, "SIMULATED", False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=current[0]))
    monkeypatch.setattr(cuda_launch.cuda, "external_stream", lambda handle: handle, raising=False)
    seen: list[int] = []

    class Noting:
        def __getitem__(self, configuration: Any) -> Any:
            return lambda *arguments: seen.append(configuration[2])

    module = ModuleType("kernels")
    vars(module)["step"] = Noting()
    given = list(current)
    while current:
        cuda_launch.launch(module, "step", (1, 32), ())
        current.pop(0)
    assert seen == given


def test_errors_of_others_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launcher(Kernel(32), market.environment, 3, monkeypatch)
    with pytest.raises(TypeError):
        launch.on("step", (3, 32), None)  # type: ignore[arg-type]


@pytest.mark.ptx
def test_small_launches_make_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba import cuda
    from numba.cuda.core import config

    monkeypatch.setattr(config, "CUDA_LOW_OCCUPANCY_WARNINGS", 1)
    monkeypatch.setattr(cuda, "current_context", good)
    READY["_numba"]()
    assert config.CUDA_LOW_OCCUPANCY_WARNINGS == 0
