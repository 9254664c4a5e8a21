"""What the learner's CUDA kernels take of a GPU, and how long an iteration should take, without a GPU.

    python scripts/gpu_kernels.py [HIDDEN ...]

for A2C on CartPole with 10,000 environments and two layers of HIDDEN units (64 and 32). It compiles the kernels (extra `ptx`), prints
registers, shared memory and occupancy in markdown, and then a model of an iteration. The model is of operations and bytes:

- A multiprocessor issues an instruction of 4 warps in a cycle, and one load of shared memory or of the first-level cache. Issue and loads
  are used to the share USED of what they could be.
- Instructions come from the inner loops of the compiled kernels (INSTRUCTIONS). Blocks of a kernel that do not fit at once take turns.
- A block with few warps to alternate with waits for its own results: a warp issues at most every WAITS cycles.
- Every other operation is a launch within a CUDA graph, and moves its bytes at the speed of the memory.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from numba import cuda, typeof
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from warprun.algorithms.a2c import A2C
from warprun.envs import cartpole
from warprun.learning.communicator import SingleProcess
from warprun.learning.interfaces import Context
from warprun.learning.kernels.choose import on_cuda
from warprun.learning.kernels.cuda import gradient, optimizer, returns, statistics
from warprun.learning.network_settings import NetworkConfig
from warprun.learning.plan import STEPWISE
from warprun.simulation.trajectory import allocate

CAPABILITY = (9, 0)
MULTIPROCESSORS, CLOCK, BANDWIDTH = 132, 1.755e9, 4.8e12
"""Of an H200: cycles/s and bytes/s."""
REGISTERS, WARPS, BLOCKS, SHARED = 65536, 64, 32, 228 * 1024
"""Of a multiprocessor."""
USED, WAITS = 0.5, 2.0
LAUNCH_S, MEMORY_SHARE = 2.5e-6, 0.7
"""Seconds between two small kernels of a CUDA graph, and the share of the memory's speed that they reach."""
INSTRUCTIONS = {
    "forward": 1.6,
    "weights": 1.9,
    "slopes": 1.6,
    "activation": 23.0,
    "derivative": 4.0,
    "row sum": 5.0,
    "head": 400.0,
    "step": 300.0,
}
"""For a multiply-add; for an activation and its derivative; for a column of a row that is summed; for the loss of a row; for the step of an
environment and the sampling before it."""
LOADS = 12 / 32
"""For a multiply-add."""
ENVIRONMENTS, HORIZON = 10_000, 16


class Launch(NamedTuple):
    kernel: Any
    name: str
    blocks: int
    threads: int
    arguments: tuple[Any, ...]
    shared: int


class Counting(TorchDispatchMode):
    """Counts the operations that are kernels on a GPU, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.bytes = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        result = function(*given, **(named or {}))
        returned = function._schema.returns
        is_view = returned and all(r.alias_info is not None and not r.alias_info.is_write for r in returned)
        if not is_view and "empty" not in str(function):
            self.operations += 1
            self.bytes += sum(t.numel() * t.element_size() for t in tree_leaves((given, named, result)) if isinstance(t, torch.Tensor))
        return result


def on_host(value: Any) -> Any:
    """Return arguments of a kernel as arrays of the host: kernels are compiled for them, not run."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    return value._make(map(on_host, value)) if hasattr(value, "_fields") else value


@contextmanager
def recorded(launches: list[Launch]) -> Iterator[None]:
    """Add what is launched to `launches`, and run nothing."""

    def launch(module: Any, name: str, grid: tuple[int, int], arguments: tuple[Any, ...], shared: int = 0) -> None:
        launches.append(Launch(getattr(module, name), name, *grid, arguments, shared))

    with ExitStack() as stack:
        for module in (gradient, optimizer, returns, statistics):
            stack.enter_context(patch.object(module, "launch", launch))
            stack.enter_context(patch.object(module, "on_device", on_host))
        stack.enter_context(patch.object(gradient, "multiprocessors", lambda device: MULTIPROCESSORS))
        yield


def registers(launch: Launch) -> int:
    """Return the registers of a kernel, compiled and linked as Numba does it."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    signature = tuple(map(typeof, launch.arguments))
    code, _ = cuda.compile(launch.kernel.py_func, signature, cc=CAPABILITY, device=False, abi="numba", output="ltoir")
    most = launch.kernel.targetoptions.get("max_registers")
    options = LinkerOptions(arch="sm_90", link_time_optimization=True, max_register_count=most, ptxas_options="-v")
    linker = Linker(ObjectCode.from_ltoir(code), options=options)
    linker.link("cubin")
    said = linker.get_info_log()
    linker.close()
    found, spilled = re.search(r"Used (\d+) registers", said), re.search(r"(\d+) bytes spill stores", said)
    assert found, said
    assert spilled, said
    assert spilled[1] == "0", f"{launch.name} spills"
    return int(found[1])


def resident(launch: Launch, count: int) -> int:
    """Return how many blocks of a kernel with `count` registers fit on a multiprocessor."""
    warps = -(-launch.threads // 32)
    by_registers = REGISTERS // (-(-count // 8) * 256) // warps
    return min(by_registers, SHARED // (launch.shared + 1024), WARPS // warps, BLOCKS)


def learn(hidden: int) -> tuple[list[Launch], Counting]:
    """Return the launches of an update, and torch's operations beside them."""
    config = A2C.Config(network=NetworkConfig(hidden=[hidden, hidden]), horizon=HORIZON)
    spec, cpu = cartpole.environment().spec, torch.device("cpu")
    agent = A2C(config, spec, Context(cpu, ENVIRONMENTS, 1, 0, STEPWISE, SingleProcess()))
    launches: list[Launch] = []
    with recorded(launches), Counting() as counting:
        for learner in agent.learners:
            learner.policy.slices.on_cpu = False  # as on a GPU, batches stay in one piece
            learner.operations = on_cuda(learner.reference, A2C.derivatives(learner.config))
        trajectory = allocate(spec, HORIZON, ENVIRONMENTS, cpu)
        counting.operations = counting.bytes = 0
        agent.learn(trajectory)
    return launches, counting


def seconds(slots: float, loads: float, warps: float) -> float:
    """Return the time of a multiprocessor for instructions and loads of warps, if `warps` of them alternate on each scheduler."""
    issued = max(slots / 4 / USED, slots / 4 * WAITS / max(warps, 0.25)) if warps < WAITS else slots / 4 / USED
    return max(issued, loads / USED) / CLOCK


def model(hidden: int, launches: list[Launch], counting: Counting, most: dict[str, int]) -> None:
    """Print the parts of an iteration."""
    inputs, outputs = cartpole.environment().groups[0].observation.size, 3
    weights, units = inputs * hidden + hidden * hidden + hidden * outputs, 2 * hidden
    of = INSTRUCTIONS
    forward = of["forward"] * weights + of["activation"] * units
    backward = of["weights"] * weights + of["slopes"] * (weights - inputs * hidden) + of["derivative"] * units
    rows = ENVIRONMENTS * HORIZON
    # Rollout: a block of two warps for 32 environments, all steps one after the other.
    blocks = math.ceil(math.ceil(ENVIRONMENTS / 32) / MULTIPROCESSORS)
    slots = (forward + of["step"]) * blocks * 32 / 32 * HORIZON
    parts = {"rollout": seconds(slots, LOADS * weights * blocks * HORIZON, 2 * blocks / 4)}
    # Gradient: tiles of 32 rows, taken in turns by the blocks.
    (launch,) = (one for one in launches if one.name == "gradient")
    at_once = most["gradient"]
    turns = math.ceil(math.ceil(rows / 32) / launch.blocks)
    of_tile = forward + backward + of["row sum"] * (units + outputs + 6) + of["head"]
    work = (2 * weights + weights - inputs * hidden) * LOADS
    tiles = turns * math.ceil(launch.blocks / MULTIPROCESSORS)
    parts["gradient"] = seconds(of_tile * tiles, work * tiles, at_once * launch.threads / 32 / 4)
    partial = 8.0 * launch.blocks * (weights + units + outputs)
    parts["sums of blocks"] = LAUNCH_S + partial / (BANDWIDTH * MEMORY_SHARE)
    (values,) = (one for one in launches if one.name == "next_values")
    parts["values"] = LAUNCH_S + 2 * seconds(forward * math.ceil(values.blocks / MULTIPROCESSORS), 0.0, 1.0)
    small = [one for one in launches if one.name not in ("gradient", "reduce", "next_values")]
    moved = sum(t.nbytes for one in small for t in tree_leaves(one.arguments) if hasattr(t, "nbytes"))
    parts[f"{len(small)} small kernels"] = len(small) * LAUNCH_S + moved / (BANDWIDTH * MEMORY_SHARE)
    parts[f"{counting.operations} operations of torch"] = counting.operations * LAUNCH_S + counting.bytes / (BANDWIDTH * MEMORY_SHARE)
    total = sum(parts.values())
    print("| part | µs |\n|---|---|")
    for name, time in parts.items():
        print(f"| {name} | {1e6 * time:.0f} |")
    print(f"| **iteration of {rows:,} steps** | **{1e6 * total:.0f}**: {rows / total / 1e6:.0f} M steps/s |\n")


def main(sizes: list[int]) -> None:
    """Print the tables."""
    import numba.cuda.dispatcher

    numba.cuda.dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=CAPABILITY)
    for hidden in sizes:
        launches, counting = learn(hidden)
        print(
            f"### {hidden}-{hidden}\n\n| kernel | blocks | threads | registers | shared memory, B | occupancy |\n|---|---|---|---|---|---|"
        )
        most = {}
        for launch in launches:
            count = registers(launch)
            most[launch.name] = resident(launch, count)
            share = most[launch.name] * -(-launch.threads // 32) / WARPS
            print(f"| `{launch.name}` | {launch.blocks} | {launch.threads} | {count} | {launch.shared:,} | {share:.0%} |", flush=True)
        print()
        model(hidden, launches, counting, most)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [64, 32])
