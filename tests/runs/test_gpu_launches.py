"""What an iteration asks of a GPU, counted without one: a few graph replays and launches, nothing from the host, a few bytes to it.

A whole iteration (rollout, update, the checks of the run) runs on torch's device `meta`: what the host would read is an error, and what it
sends shows as a tensor of the CPU. Kernels of warprun are recorded and not run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.scripts import load
from tests.selection import few
from warprun.config.planning import make_plan
from warprun.learning import capture
from warprun.runs import build
from warprun.runs.build import make_agent, make_training_simulator
from warprun.simulation import faults, kernel_engine

RECORDING = load("cuda_launches")
FIXED = load("common").FIXED
META = torch.device("meta")
STEPS = 16
"""Gradient steps of an iteration off policy."""
OFF_POLICY = f"tuned=none n_envs=1024 agent.utd_ratio={STEPS / 1024} agent.learning_starts=14336"
REPLAYS = {"rollout": 1, "update or storing": 1}
MOST_LAUNCHES, MOST_BESIDE_STEPS = 5, 7
"""Kernels that Python launches: schedules, counters, the last observations. Off policy one more goes with every gradient step."""
MOST_BYTES = 64
"""The flag of a fault, and the metrics of an update: float32 each."""
SETTLED = 2
"""Iterations that learn before those that are counted: the first ones make what is made once."""


def _cases() -> Iterator[tuple[str, str]]:
    memory = ("", "lstm", "gru")
    for agent, env in ((agent, env) for agent in ("a2c", "ppo") for env in ("cartpole", "pendulum")):
        for kind in memory:
            network = f" agent.network={kind}" if kind else ""
            yield f"{agent} {env} {kind}".strip(), f"env={env} agent={agent} tuned=none n_envs=10000 {FIXED[agent]}{network}"
    for agent, env in (("dqn", "cartpole"), ("ddpg", "pendulum"), ("td3", "pendulum"), ("sac", "pendulum")):
        given = f"env={env} agent={agent} {OFF_POLICY}"
        yield f"{agent} {env}", given
        yield f"{agent} {env} prioritized", f"{given} agent.replay.prioritized=true"
        for kind in memory[1:]:
            yield f"{agent} {env} {kind}", f"{given} agent.network={kind} agent.replay.sequence=10 agent.replay.burn_in=4"


CASES = dict(_cases())
"""Discrete actions (cartpole) and continuous ones (pendulum) with every agent that takes them."""
FEW = ("a2c cartpole", "sac pendulum", "a2c pendulum gru", "ppo cartpole", "dqn cartpole", "td3 pendulum")


@dataclass
class Counted:
    """What is asked of the GPU; `operations` in order, those of graphs with all numbers that are no tensors."""

    graphs: int = 0
    launches: int = 0
    """Outside of graphs."""
    to_device: int = 0
    """Bytes from the host."""
    to_host: int = 0
    captures: bool = False
    operations: list[tuple[str, ...]] = field(default_factory=list)

    def kernel(self, name: str, *arguments: Any) -> None:
        """Count a kernel."""
        shown = [f"{tuple(x.shape)} {x.dtype}" if isinstance(x, torch.Tensor) else repr(x) for x in tree_leaves(arguments)]
        self.operations.append((name, *shown) if self.captures else (name,))
        self.launches += not self.captures


class Operations(TorchDispatchMode):
    """Counts the operations of torch that are kernels."""

    def __init__(self, counted: Counted) -> None:
        super().__init__()
        self.counted = counted

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        result = function(*given, **(named or {}))
        leaves = tree_leaves((given, named, result))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        here = [tensor for tensor in tensors if tensor.device != META]
        if here and len(here) < len(tensors):
            # A number that is a tensor of the CPU, [], is an argument of the kernel.
            self.counted.to_device += sum(tensor.nbytes for tensor in here if tensor.dim())
        returned = function._schema.returns
        is_view = returned and all(r.alias_info is not None and not r.alias_info.is_write for r in returned)
        if len(here) < len(tensors) and not is_view and "empty" not in str(function):
            self.counted.kernel(str(function), *leaves)
        return result


class Graph:
    """Stands for `Captured`: the work runs, and is counted as one replay."""

    counted = Counted()

    def __init__(self, work: Any) -> None:
        self.work = work

    def __call__(self, *arguments: Any) -> Any:
        counted = Graph.counted
        counted.graphs += 1
        counted.captures = True
        try:
            return self.work(*arguments)
        finally:
            counted.captures = False


class Arriving(faults.Arriving):
    """Counts what is copied to the host."""

    def exchange(self, tensor: torch.Tensor, names: tuple[str, ...] = ()) -> None:
        Graph.counted.to_host += tensor.nbytes


class Launches(list[Any]):
    """Counts the kernels of warprun that are recorded."""

    def append(self, launch: Any) -> None:
        Graph.counted.kernel(launch.name, launch.grid(1024), launch.arguments)


@contextmanager
def counted_gpu() -> Iterator[None]:
    """Let the code for GPUs run on the device `meta`, and count."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(RECORDING, "list", Launches, create=True))
        stack.enter_context(RECORDING.recording())
        for place, name, stand_in in (
            (capture, "Captured", Graph),
            (build, "Captured", Graph),
            (kernel_engine, "Arriving", Arriving),
        ):
            stack.enter_context(patch.object(place, name, stand_in))
        yield


def iterations(*overrides: str) -> tuple[Counted, Counted]:
    """Return what two iterations of a run ask for, one after the other."""
    setup = RECORDING.setup_of(*overrides)
    config = setup.config
    setup = replace(setup, plan=make_plan(config, setup.environment, "cuda"))
    with counted_gpu():
        agent: Any = make_agent(setup)
        if hasattr(agent, "_has_updated"):
            agent._has_updated = True  # the first update of a process reads once whether the agent is a restored one
        simulator = make_training_simulator(setup, agent)
        simulator.prepare()
        arriving, found = Arriving(), []
        last = SETTLED + 2 + agent.learning_starts // config.n_envs
        for number in range(last):
            Graph.counted = Counted()
            with Operations(Graph.counted):
                trajectory = simulator.collect(agent.act)
                simulator.fault()
                metrics = agent.update(trajectory, number / last)
                # As in `runs.sentinel`.
                on_device = [value.detach().float() for value in metrics.values() if isinstance(value, torch.Tensor)]
                if on_device:
                    arriving.exchange(torch.stack(on_device))
            found.append(Graph.counted)
    return found[-2], found[-1]


@pytest.mark.by_default(2)
@pytest.mark.parametrize("case", few(CASES, *FEW))
def test_an_iteration_is_graphs_and_sends_next_to_nothing(case: str) -> None:
    former, counted = iterations(*CASES[case].split())
    assert former.operations == counted.operations
    steps = STEPS if "agent.utd_ratio" in CASES[case] else 0
    assert counted.graphs == 2 + steps
    assert counted.launches <= MOST_LAUNCHES + (MOST_BESIDE_STEPS - MOST_LAUNCHES + steps if steps else 0)
    assert len(counted.operations) > counted.launches + 5, "nothing was counted in graphs"
    through_steps = {name for name, *_ in counted.operations} & {"forward", "backward"}
    assert through_steps == ({"forward", "backward"} if "agent.network=" in CASES[case] else set())
    assert counted.to_device == 0
    assert 0 < counted.to_host <= MOST_BYTES


def test_what_the_host_sends_is_seen() -> None:
    counted = Counted()
    with Operations(counted):
        there = torch.zeros(3, device="meta")
        there.copy_(torch.ones(3))
        there.fill_(2.0)
        there[1:].add_(there[:-1])
    assert (counted.to_device, counted.launches) == (12, 4)
    with pytest.raises(RuntimeError, match="item"), Operations(counted):
        there.sum().item()
