"""What another process compiles for agents on a CPU."""

import pickle
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.agents import build
from warprun.cli import train
from warprun.config.compose import compose
from warprun.envs import cartpole, pendulum
from warprun.kernels import ahead
from warprun.learning.settings.networks import NetworkConfig

MAKE = """
import pickle, sys
from warprun.kernels.compile import load_module
for recipe, kernel, types, _ in map(pickle.loads, pickle.load(sys.stdin.buffer)):
    getattr(load_module(*recipe), kernel)
sys.exit("torch" in sys.modules)
"""


def test_it_imports_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: dict[str, bytes] = {}

    def want(module: ModuleType, kernel: str, types: Any) -> None:
        orders[f"{module.__name__}.{kernel}"] = ahead._written(ahead.Order(module.__recipe__, kernel, tuple(types), None))

    monkeypatch.setattr(ahead, "want", want)
    discrete, real, lstm = cartpole.environment(), pendulum.environment(), NetworkConfig(type="lstm", hidden=(16,), units=(8,))
    for name in ("a2c", "ppo"):
        build(name, discrete, fused=True)
        build(name, real, fused=True)
        build(name, discrete, fused=True, network=lstm)
    for name, environment in (("dqn", discrete), ("td3", real), ("sac", real)):
        build(name, environment, fused=True)
    kernels = {name.rpartition(".")[2] for name in orders}
    assert kernels >= {"gradient", "finish", "whole", "advantages", "spread", "moments", "merge", "shuffled"}
    assert all(orders.values())
    assert subprocess.run([sys.executable, "-c", MAKE], input=pickle.dumps(list(orders.values())), check=False).returncode == 0


def test_nor_does_it_before_it_gets_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[tuple[Any, ...]] = []
    monkeypatch.setattr(ahead, "expect", lambda *given: expected.append(given))
    train._expect_kernels(compose(["env=cartpole", "device=cpu", "concurrency.threads=2"]))
    ((_, modules, _, _, early),) = expected
    imports = "".join(f"import {module}\n" for module in (*modules, early.module))
    assert subprocess.run([sys.executable, "-c", f"import sys\n{imports}sys.exit('torch' in sys.modules)"], check=False).returncode == 0
