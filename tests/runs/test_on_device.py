"""Whole iterations of training on a pretended GPU, whose kernels do nothing: what of them involves the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.learning.cuda.simulated import KERNEL_MODULES
from tests.pretended import CUDA, pretended
from warprun.config.compose import compose
from warprun.config.planning import make_plan
from warprun.config.schema import load_environment, make_tables
from warprun.environment import Environment
from warprun.runs.build import SINGLE, Setup, make_agent, make_training_simulator
from warprun.simulation.device import Device

pytestmark = pytest.mark.ptx

SMALL = ["tuned=none", "device=cpu", "engine.compare=false", "n_envs=8", "agent.horizon=4"]
OFF = ["agent.learning_starts=40", "agent.batch_size=8", "agent.utd_ratio=0.1", "agent.replay.prioritized=true"]
CASES = [
    "env=cartpole agent=a2c env.time_limit=6",
    "env=cartpole agent=dqn",
    "env=tag_gridworld agent=ppo agent.epochs=1 agent.minibatches=2",
    "env=pendulum agent=a2c agent.network=gru",
    "env=cartpole agent=a2c engine.fused=false env.on_nan=reset",
    "env=pendulum agent=sac",
]


class Nothing:
    """Stands for a launcher of kernels, and for numbers on their way to the host."""

    def __init__(self, *given: Any) -> None:
        pass

    def each(self, *given: Any) -> None:
        pass

    on = exchange = each


@pytest.mark.by_default(1)
@pytest.mark.parametrize("case", CASES)
def test_an_iteration_does_not_involve_the_host(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second one on, also where cut episodes of the beginning are over, and after a reset."""
    nothing = {
        "launch": lambda *given: None,
        "on_device": lambda value: value,
        "want": lambda *given: None,
        "multiprocessors": lambda device: 4,
    }
    for module in KERNEL_MODULES:
        for name, stand_in in nothing.items():
            monkeypatch.setattr(module, name, stand_in, raising=False)
    monkeypatch.setattr("warprun.simulation.cuda.on_device", lambda value: value)
    for place in ("simulation.cuda.Launcher", "simulation.kernel_engine.Arriving"):
        monkeypatch.setattr(f"warprun.{place}", Nothing)
    for place in ("learning.capture", "runs.build"):
        monkeypatch.setattr(f"warprun.{place}.Captured", lambda work: work)
    monkeypatch.setattr(Device, "torch", CUDA)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 40, 1 << 40))
    config = compose([*SMALL, *case.split(), *(OFF if case.split()[1] in ("agent=dqn", "agent=sac") else [])])
    environment, _ = load_environment(config.env)
    assert isinstance(environment, Environment)
    tables, plan = make_tables(environment, config.env), make_plan(config, environment, "cuda")
    setup = Setup(config, Device("cuda", "a test"), environment, tables, plan, SINGLE)
    with pretended() as device:
        agent: Any = make_agent(setup)
        if hasattr(agent, "_has_updated"):
            agent._has_updated = True  # its first update reads from the device whether the agent is a restored one
        simulator = make_training_simulator(setup, agent)
        simulator.prepare()
        agent.update(simulator.collect(agent.act), 0.0)
        device.watches = True
        for n in range(4):
            simulator.fault()
            agent.update(simulator.collect(agent.act), n / 4)
        simulator.reset()
        simulator.collect(agent.act)
    assert device.operations
