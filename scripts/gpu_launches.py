"""Count what an iteration of training asks of a GPU, without one: launches, CUDA graphs, bytes between host and device, expected time.

    python scripts/gpu_launches.py [--write] [CASE ...]

A whole iteration (rollout, update, the checks of the run) runs on torch's device `meta`, whose tensors have shapes and
no numbers: what the host would read of them is an error, and what it sends shows as a tensor of the CPU. Kernels of
warprun are counted and not run; the extra `ptx` has what writes them. Two iterations must be the same operations, those
of graphs with the same numbers. The table is printed; `--write` puts it into docs/gpu.md and
docs/benchmarks/gpu_launches.json.

The expected time is the model of `gpu_kernels`: each operation of torch is one kernel of 2.5 us and the time of its bytes, and here that of
the multiplications of a matrix product as well. LSTM and GRU cells are counted in their parts, of which CUDA fuses most: an upper bound.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from common import DOCS, FIXED, head, row, settings
from common import replace as replace_in_page
from gpu_kernels import BANDWIDTH, CLOCK, INSTRUCTIONS, LAUNCH_S, LOADS, MEMORY_SHARE, MULTIPROCESSORS, USED, seconds
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from warprun.config.compose import compose
from warprun.config.planning import make_plan
from warprun.config.schema import Config
from warprun.learning import capture
from warprun.learning.kernels.cuda import gradient, optimizer, returns, statistics
from warprun.runs import build
from warprun.runs.build import SINGLE, Setup, make_agent, make_training_simulator
from warprun.simulation import cuda as backend
from warprun.simulation import faults, kernel_engine
from warprun.simulation.device import Device

META = torch.device("meta")
ON_POLICY, OFF_POLICY = 10_000, 1_024
"""Environments."""
CALL_S = 8e-6
"""Seconds of the host for a launch from Python, and for the replay of a graph."""
SETTLED = 2
"""Iterations that learn before those that are counted: the first ones make what is made once."""
COMMON = ["tuned=none", "device=cpu", "engine.compare=false", f"n_envs={ON_POLICY}"]
FEW_STEPS = [f"n_envs={OFF_POLICY}", "agent.utd_ratio=0.015625", f"agent.learning_starts={14 * OFF_POLICY}"]
"""16 gradient steps in an iteration."""
REMEMBERS = ["agent.replay.sequence=10", "agent.replay.burn_in=4"]
MEMORY = ("lstm", "gru")


def _cases() -> dict[str, list[str]]:
    found = {}
    for agent in ("a2c", "ppo"):
        for env in ("cartpole", "pendulum"):
            given = [f"env={env}", f"agent={agent}", *FIXED[agent].split()]
            found[f"{agent} {env}"] = given
            found |= {f"{agent} {env} {kind}": [*given, f"agent.network={kind}"] for kind in MEMORY}
    for agent, env in {"dqn": "cartpole", "ddpg": "pendulum", "td3": "pendulum", "sac": "pendulum"}.items():
        given = [f"env={env}", f"agent={agent}", *FEW_STEPS]
        found[f"{agent} {env}"] = given
        found[f"{agent} {env} prioritized"] = [*given, "agent.replay.prioritized=true"]
        found |= {f"{agent} {env} {kind}": [*given, f"agent.network={kind}", *REMEMBERS] for kind in MEMORY}
    return found


CASES = _cases()
"""What is counted: discrete actions (cartpole) and continuous ones (pendulum) with every agent that takes them."""


class OnMeta(Device):
    """A GPU whose memory is torch's device `meta`."""

    @property
    def torch(self) -> torch.device:
        return META


@dataclass
class Counted:
    """What is asked of the GPU; `operations` in order, those of graphs with all numbers that are no tensors."""

    graphs: int = 0
    """Replays."""
    in_graphs: int = 0
    """Kernels of these graphs."""
    launches: int = 0
    """Kernels that Python launches, outside of graphs."""
    to_device: int = 0
    """Bytes from the host."""
    to_host: int = 0
    """Bytes to the host, which does not wait for them."""
    seconds: float = 0.0
    """Expected time of the GPU."""
    captures: bool = False
    operations: list[tuple[str, ...]] = field(default_factory=list)

    def kernel(self, seconds: float, *described: str) -> None:
        """Count a kernel."""
        self.operations.append(described if self.captures else described[:1])
        self.seconds += seconds
        if self.captures:
            self.in_graphs += 1
        else:
            self.launches += 1


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
        if len(here) == len(tensors) or is_view or "empty" in str(function):
            return result
        shown = [f"{tuple(x.shape)} {x.dtype}" if isinstance(x, torch.Tensor) else repr(x) for x in leaves]
        moved = sum(tensor.nbytes for tensor in tensors) / (BANDWIDTH * MEMORY_SHARE)
        self.counted.kernel(LAUNCH_S + moved + _product_s(function, given), str(function), *shown)
        return result


def _product_s(function: Any, given: Sequence[Any]) -> float:
    """Return the time of the multiplications of a matrix product on all multiprocessors; 0 for other operations."""
    if function.overloadpacket not in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
        return 0.0
    a, b = given[-2:]
    return a.numel() * b.shape[-1] / (128 * MULTIPROCESSORS * CLOCK * USED)


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


class Launcher:
    """Counts the kernels of an environment."""

    def __init__(self, module: Any, plan: Any) -> None:
        self.plan = plan
        self.step_s = plan.bytes_needed() / plan.horizon / (BANDWIDTH * MEMORY_SHARE)

    def each(self, name: str, arguments: Sequence[Any]) -> None:
        """Count a kernel over all environments, which moves the arrays of a step."""
        Graph.counted.kernel(LAUNCH_S + self.step_s, name, *_described(arguments))

    def on(self, name: str, grid: tuple[int, int], arguments: Sequence[Any], shared_bytes: int = 0) -> None:
        """Count a fused rollout: the blocks of a multiprocessor take turns, all steps one after the other."""
        (inference,) = arguments[-len(self.plan.environment.groups) :]
        weights, units = _size(inference.network)
        blocks = math.ceil(grid[0] / MULTIPROCESSORS)
        slots = (INSTRUCTIONS["forward"] * weights + INSTRUCTIONS["activation"] * units + INSTRUCTIONS["step"]) * blocks
        time = seconds(slots * arguments[0], LOADS * weights * blocks * arguments[0], 2 * blocks / 4)
        Graph.counted.kernel(LAUNCH_S + time, name, str(grid), *_described(arguments))


def launch(module: Any, name: str, grid: tuple[int, int], arguments: Sequence[Any], shared_bytes: int = 0) -> None:
    """Count a kernel of the learner."""
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    time = sum(tensor.nbytes for tensor in tensors) / (BANDWIDTH * MEMORY_SHARE)
    if name in ("gradient", "next_values"):
        network = arguments[0]
        weights, units = _size(network)
        of = INSTRUCTIONS
        tile = of["forward"] * weights + of["activation"] * units
        work = 1.0 * weights
        if name == "gradient":
            tile += (of["weights"] + of["slopes"]) * weights + (of["derivative"] + of["row sum"]) * units + of["head"]
            work, rows = 3.0 * weights, arguments[3].batch
        else:
            rows = 2 * grid[0] * network.columns
        tiles = math.ceil(math.ceil(rows / network.columns) / MULTIPROCESSORS)
        time += seconds(tile * tiles, LOADS * work * tiles, 4.0)
    Graph.counted.kernel(LAUNCH_S + time, name, str(grid), *_described(arguments))


def _size(network: Any) -> tuple[int, int]:
    """Return the weights of a network of a kernel and its units."""
    layers = network.layers.tolist() if network.layers.device != META else []
    return network.weights.numel(), sum(int(layer[3]) for layer in layers) or 2 * 64


def _described(arguments: Any) -> list[str]:
    return [f"{tuple(x.shape)} {x.dtype}" if isinstance(x, torch.Tensor) else repr(x) for x in tree_leaves(arguments)]


@contextmanager
def counted_gpu() -> Iterator[None]:
    """Let the code for GPUs run on the device `meta`, and count."""
    with ExitStack() as stack:
        replaced = [(module, "launch", launch) for module in (gradient, optimizer, returns, statistics)]
        replaced += [(module, "on_device", lambda value: value) for module in (gradient, optimizer, returns, statistics, backend)]
        replaced += [(module, "want", lambda *_: None) for module in (gradient, optimizer, returns, statistics)]
        replaced += [(gradient, "multiprocessors", lambda device: MULTIPROCESSORS), (backend, "Launcher", Launcher)]
        replaced += [(capture, "Captured", Graph), (kernel_engine, "Captured", Graph), (kernel_engine, "Arriving", Arriving)]
        replaced += [(torch.cuda, "mem_get_info", lambda: (1 << 40, 1 << 40))]
        for place, name, stand_in in replaced:
            stack.enter_context(patch.object(place, name, stand_in))
        yield


def iterations(config: Config, count: int) -> list[Counted]:
    """Return what the last `count` iterations of a run ask for, after those that settle."""
    environment, _ = build.load_environment(config.env)
    plan = make_plan(config, environment, "cuda")
    setup = Setup(config, OnMeta("cuda", "a table"), environment, None, plan, SINGLE)
    with counted_gpu():
        agent: Any = make_agent(setup)
        if hasattr(agent, "_has_updated"):
            agent._has_updated = True  # the first update of a process reads once whether the agent is a restored one
        simulator = make_training_simulator(setup, agent)
        simulator.prepare()
        arriving, found = Arriving(), []
        last = SETTLED + count + agent.learning_starts // config.n_envs
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
    return found[-count:]


def measure(name: str) -> dict[str, Any]:
    """Return the counts of a case. Raises AssertionError if two iterations differ."""
    config = compose([*COMMON, *CASES[name]])
    former, counted = iterations(config, 2)
    for before, after in zip(former.operations, counted.operations, strict=True):
        assert before == after, f"{name}: {before} in one iteration, {after} in the next"
    steps = config.n_envs * config.agent.horizon
    host = CALL_S * (counted.graphs + counted.launches)
    return {
        "n_envs": config.n_envs,
        "steps": steps,
        "graphs": counted.graphs,
        "kernels_in_graphs": counted.in_graphs,
        "launches": counted.launches,
        "bytes_to_device": counted.to_device,
        "bytes_to_host": counted.to_host,
        "gpu_ms": round(1e3 * counted.seconds, 2),
        "host_ms": round(1e3 * host, 2),
        "k_steps_per_s": round(steps / max(counted.seconds, host) / 1e3),
    }


TITLES = (
    *("case", "graphs", "kernels in them", "launches beside", "bytes to device", "bytes to host"),
    *("expected ms", "of the host, ms", "thousand steps/s"),
)


def cells(name: str, found: dict[str, Any]) -> Iterator[object]:
    """Yield the cells of a row of the table."""
    yield name
    for key in ("graphs", "kernels_in_graphs", "launches", "bytes_to_device", "bytes_to_host"):
        yield f"{found[key]:,}"
    yield from (f"{found['gpu_ms']:.2f}", f"{found['host_ms']:.2f}", f"{found['k_steps_per_s']:,}")


def main() -> None:
    """Print the table, and write it if asked to."""
    given = settings(__doc__, "case*", write=False, choices={"case": [*CASES, []]})
    lines, found = [head(*TITLES)], {}
    print(lines[0])
    for name in given.case or CASES:
        found[name] = measure(name)
        lines.append(row(*cells(name, found[name])))
        print(lines[-1], flush=True)
    if given.write:
        content = {"torch": torch.__version__.partition("+")[0], "cases": found}
        (DOCS / "benchmarks" / "gpu_launches.json").write_text(json.dumps(content, indent=1) + "\n")
        replace_in_page(DOCS / "gpu.md", "launches", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
