"""The learner's CUDA kernels, compiled without a GPU: no local memory, no calls, and float64 only where it is meant."""

import re
from typing import Any

import pytest
import torch
from numba import typeof

from tests.agents import CPU, build
from tests.kernels.test_ptx import compiled, instructions, no_device_needed, product_overhead  # noqa: F401
from tests.learning.cuda.simulated import KERNEL_MODULES, cuda_kernels
from tests.learning.helpers import SPACES, environment, rollout
from tests.ptx.off_policy import learner_of
from tests.selection import few
from warprun.simulation.cpu import as_numpy

pytestmark = pytest.mark.ptx

FLOAT64 = {"draw", "put", "sum_stored", "gather", "step", "reduce", "squares", "advantages", "spread", "moments", "merge", "returns"}
FLOAT64 |= {"pick", "part_moments", "adapt"}
"""Kernels that compute corrections of Adam, the number of its step, a learning rate and sums over many rows in float64."""
Launched = dict[str, tuple[Any, tuple[Any, ...]]]


def tensors_on_host(value: Any) -> Any:
    """Return the types of arguments that a kernel gets on a GPU."""
    return value._make(map(tensors_on_host, value)) if hasattr(value, "_fields") else as_numpy(value)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """Return, by its name, each kernel that is launched from now on, and its arguments; none runs."""
    seen: Launched = {}

    def launch(module: Any, name: str, grid: tuple[int, int], arguments: tuple[Any, ...], shared_bytes: int = 0) -> None:
        seen[name] = getattr(module, name), arguments

    for module in KERNEL_MODULES:
        monkeypatch.setattr(module, "launch", launch, raising=False)
        monkeypatch.setattr(module, "on_device", tensors_on_host, raising=False)
        monkeypatch.setattr(module, "want", lambda *kernel: None, raising=False)  # no other process compiles for a GPU that is not there
    return seen


@pytest.mark.long
@pytest.mark.parametrize("space", few(SPACES, "many", "real"))
@pytest.mark.parametrize("algorithm", few(["a2c", "ppo"], "ppo"))
def test_kernels_compile_to_lean_ptx(algorithm: str, space: str, launched: Launched) -> None:
    env = environment(only=SPACES[space])
    agent = build(algorithm, env, n_envs=5)
    (learner,) = agent.learners
    learner.operations = cuda_kernels(learner)
    batch = learner.batch(rollout(env)).samples()
    order = torch.arange(len(batch.obs), device=CPU)
    gradient, means = learner.gradient(batch, batch.advantage, order)
    learner.operations.step_of_many(gradient.clone(), means, None, 1)
    learner.observe(batch.obs)
    expected = {"pack", "returns", "merge", "moments", "advantages", "spread", "gradient", "reduce", "squares", "step"}
    if algorithm == "ppo":
        operations = learner.operations
        operations.pick(batch.advantage, operations.permutation(len(order), 0, agent.updates, 1), [slice(0, len(order))])
        expected |= {"order", "pick"}
    assert launched.keys() == expected
    for name, (kernel, arguments) in launched.items():
        ptx = compiled(kernel.py_func, tuple(map(typeof, arguments)), (9, 0))
        text = instructions(ptx)
        for unwanted in (r"\.local\b", r"\bcall\b", *([] if name in FLOAT64 else [r"\.f64\b"])):
            assert not re.search(unwanted, text), f"{unwanted} in {name}"
        if name == "gradient":
            # 12 loads for 32 multiply-adds, addresses and the count.
            assert product_overhead(ptx, "fma.rn.f32", 32) < 2.0


@pytest.mark.long
@pytest.mark.parametrize("case", ["prioritized dqn", "td3", "sac prioritized"])
def test_kernels_of_off_policy_agents_compile_to_lean_ptx(case: str, launched: Launched) -> None:
    learner = learner_of(case, 64, "relu 17-5")
    learner.update()
    assert {"store", "draw", "gather", "reduce", "step"} < launched.keys()
    for name, (kernel, arguments) in launched.items():
        text = instructions(compiled(kernel.py_func, tuple(map(typeof, arguments)), (9, 0)))
        for unwanted in (r"\.local\b", r"\bcall\b", *([] if name in FLOAT64 else [r"\.f64\b"])):
            assert not re.search(unwanted, text), f"{unwanted} in {name}"
