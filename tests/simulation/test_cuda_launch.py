"""Launches: blocks as large as the registers of a kernel allow, every environment computed, and errors that name the kernel."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.environments import market
from warprun.envs import cartpole
from warprun.errors import UserError
from warprun.simulation import cuda_launch
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.targets import target_for
from warprun.simulation.cuda_launch import Launcher, grid_for

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


@pytest.mark.parametrize(("registers", "threads"), [(32, 1024), (64, 1024), (76, 832), (168, 384), (255, 256)])
def test_a_block_of_many_actors_has_the_threads_that_its_registers_allow(
    registers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(-(-registers // 8) * 8 if registers != 76 else 76)
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


def test_errors_of_others_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launcher(Kernel(32), market.environment, 3, monkeypatch)
    with pytest.raises(TypeError):
        launch.on("step", (3, 32), None)  # type: ignore[arg-type]


def test_small_launches_make_no_noise() -> None:
    if cuda_launch.SIMULATED:
        pytest.skip("the simulator does not warn")
    from numba.cuda.core import config

    assert config.CUDA_LOW_OCCUPANCY_WARNINGS == 0
