"""The memory of a run on a GPU: that of CUDA graphs is counted, and a GPU that does not work has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warprun.config import memory
from warprun.config.compose import compose
from warprun.config.schema import load_environment


def test_captures_keep_what_an_update_works_with() -> None:
    config = compose(["env=cartpole", "agent=a2c", "n_envs=10000", "engine.gradients=torch"])
    environment, _ = load_environment(config.env)
    parts = memory.estimate(config, environment, on_gpu=True).parts
    assert parts["CUDA graphs"] >= 4 * 10_000 * config.agent.horizon * 64
    assert memory.estimate(config, environment, on_gpu=False).parts["CUDA graphs"] == 0
    kernels = replace(config, engine=replace(config.engine, gradients="kernels"))  # which keep no activations, but sums of blocks
    by_kernels = memory.estimate(kernels, environment, on_gpu=True).parts
    assert by_kernels["CUDA graphs"] < parts["CUDA graphs"]
    assert by_kernels["networks"] > parts["networks"]
    eager = replace(config, engine=replace(config.engine, capture=False))
    assert memory.estimate(eager, environment, on_gpu=True).parts["CUDA graphs"] == 0


@pytest.mark.parametrize(("works", "on_gpu"), [(True, True), (False, False)])
def test_the_memory_of_a_gpu_counts_if_a_kernel_runs_there(works: bool, on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "why_no_cuda", lambda: None)
    monkeypatch.setattr(memory, "cuda_memory", lambda: 2**33)
    monkeypatch.setattr("warprun.simulation.device.cuda_problem", lambda: None if works else "it is busy")
    found, there = memory._memory_of_device(compose(["env=cartpole", "agent=a2c"]))
    assert found == on_gpu
    assert (there == 2**33) == on_gpu
