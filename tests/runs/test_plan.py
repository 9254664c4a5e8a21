"""The plan of a run: what kernels compute, and the line that says so."""

from __future__ import annotations

import pytest

from tests.environments import pinball
from warprun.config.compose import compose
from warprun.config.schema import load_environment
from warprun.errors import UserError
from warprun.runs.build import make_plan
from warprun.simulation.device import Device

EXTERNAL = "stepwise (the environment is not made of kernels)"
CASES = [
    ("kernels", "cpu", [], "fused"),
    ("kernels", "cpu", ["engine.fused=false"], "stepwise (engine.fused=false)"),
    ("kernels", "cpu", ["agent.network.activation=elu"], "stepwise (agent.network.activation=elu; kernels compute tanh and relu)"),
    ("kernels", "cpu", ["agent=dqn", "agent.dueling=true"], "fused rollout, update by torch (agent.dueling=true)"),
    ("kernels", "cpu", ["engine.gradients=torch"], "fused rollout, update by torch (engine.gradients=torch)"),
    ("kernels", "cuda", [], "fused; captured in CUDA graphs"),
    ("kernels", "cuda", ["engine.gradients=kernels"], "fused; captured in CUDA graphs"),
    ("kernels", "cuda", ["engine.gradients=torch"], "fused rollout, update by torch (engine.gradients=torch); captured in CUDA graphs"),
    (
        "kernels",
        "cuda",
        ["agent=dqn"],
        "fused rollout, update by torch (kernels compute gradients of off-policy agents on CPU only); captured in CUDA graphs",
    ),
    # 3,071 rows fit into the shared memory of a rollout, and not the 6 more of a gradient.
    (
        "kernels",
        "cuda",
        ["agent.network.hidden=[3064]"],
        "fused rollout, update by torch (a network has more rows than the shared memory of a GPU's blocks holds); captured in CUDA graphs",
    ),
    ("kernels", "cuda", ["concurrency=async"], "fused; captured in CUDA graphs"),
    (
        *("kernels", "cuda", ["concurrency=async", "concurrency.learners=2"]),
        "fused; not captured (learners that get no rollout take no part in an update)",
    ),
    ("external", "cpu", [], f"{EXTERNAL}, networks and gradients by kernels"),
    ("external", "cpu", ["engine.fused=false"], f"{EXTERNAL}, networks by torch (engine.fused=false)"),
    (
        *("kernels", "cpu", ["agent=dqn", "agent.value_rescaling=1e-3"]),
        "fused rollout, update by torch (agent.value_rescaling=0.001)",
    ),
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


def test_kernels_that_are_wanted_and_cannot_be_are_an_error() -> None:
    config = compose(["env=cartpole", "device=cpu", "agent.network.activation=elu", "engine.gradients=kernels"])
    with pytest.raises(UserError, match=r"^engine\.gradients=kernels: kernels cannot \(agent\.network\.activation=elu"):
        make_plan(config, load_environment(config.env)[0], Device("cpu", "a test"))
