"""The plan of a run: what kernels compute, and the line that says so."""

from __future__ import annotations

import pytest

from tests.environments import pinball
from warprun.config.compose import compose
from warprun.config.schema import load_environment
from warprun.runtime.build import make_plan
from warprun.simulation.device import Device

EXTERNAL = "stepwise (the environment is not made of kernels)"
CASES = [
    ("kernels", "cpu", [], "fused"),
    ("kernels", "cpu", ["engine.fused=false"], "stepwise (engine.fused=false)"),
    ("kernels", "cpu", ["agent.network.activation=elu"], "stepwise (agent.network.activation=elu; kernels compute tanh and relu)"),
    ("kernels", "cpu", ["agent=dqn", "agent.dueling=true"], "fused rollout, update by torch (agent.dueling=true)"),
    ("kernels", "cuda", [], "fused rollout, update by torch (kernels compute gradients on CPU only); captured in CUDA graphs"),
    ("external", "cpu", [], f"{EXTERNAL}, networks and gradients by kernels"),
    ("external", "cpu", ["engine.fused=false"], f"{EXTERNAL}, networks by torch (engine.fused=false)"),
    ("external", "cpu", ["agent=dqn", "agent.dueling=true"], f"{EXTERNAL}, update by torch (agent.dueling=true)"),
    ("external", "cuda", [], f"{EXTERNAL}; not captured (the environment is not made of kernels)"),
]


@pytest.mark.parametrize(("kind", "device", "overrides", "told"), CASES)
def test_the_plan_says_what_computes_what(kind: str, device: str, overrides: list[str], told: str) -> None:
    config = compose(["env=cartpole", "device=cpu", "tuned=none", *overrides])
    environment = load_environment(config.env)[0] if kind == "kernels" else pinball.environment
    plan = make_plan(config, environment, Device(device, "a test"))
    assert str(plan) == told
    assert plan.fused == told.startswith("fused")
