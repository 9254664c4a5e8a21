"""Measure some work on a device, for scripts/gpu_check.py: a process prints a line of JSON for everything that it finds.

    python scripts/gpu_work.py compile|bench|profile|iterate UNTIL STEPS_PER_S SIZES KEY=VALUE ...

SIZES are numbers of environments, such as 1000,10000. What would not end before UNTIL (seconds since 1970) does not begin,
and a line says so; STEPS_PER_S is a rate to expect of the first size, or 0.

- compile: all that `bench` needs, and the rate of training with the first size.
- bench: what `warprun bench` measures, and gradient steps per second.
- profile: the kernels of an iteration, the time of an iteration and its memory.
- iterate: a few iterations without CUDA graphs, for a profiler around this process.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from common import Training
from torch.profiler import ProfilerActivity, profile

from warprun.config.compose import compose
from warprun.config.schema import Config
from warprun.errors import UserError
from warprun.runs import bench as measuring
from warprun.runs.build import threads

Row = dict[str, Any]
OF_BENCH, OF_PROFILE = 25, 35
"""Iterations that a size takes, or a few more."""
ITERATIONS, WARM_UP, SHOWN = 10, 5, 25
KERNEL = re.compile(r"warprun_kernels_(\w+?)_[0-9a-f]{16}(?:::|\d+)([a-z_]+)")
"""Module and name of a kernel of warprun, as the profiler shows it."""
OPERATION = re.compile(r"at::native::(?:\(anonymous namespace\)::)?(\w+)")


def gradient_steps(config: Config) -> float:
    """Return the gradient steps for an environment step."""
    agent: Any = config.agent
    if hasattr(agent, "utd_ratio"):
        return float(agent.utd_ratio)
    return getattr(agent, "epochs", 1) * getattr(agent, "minibatches", 1) / (config.n_envs * agent.horizon)


def measured(config: Config) -> Row:
    """Return what a bench of a config finds."""
    (found,) = measuring.bench([config], (threads(config),))
    return asdict(found) | {"gradient_steps_per_s": found.training_steps_per_s * gradient_steps(config)}


def compiled(config: Config) -> Row:
    """Compile what a bench needs; return the rate of training."""
    measuring.SECONDS, measuring.ROUNDS = 0.01, 3  # the first round compiles or captures, the median is another
    return {"training_steps_per_s": measured(config)["training_steps_per_s"]}


def profiled(config: Config, overrides: Sequence[str]) -> Row:
    """Return the kernels of an iteration with the most time, in µs, and the memory; on CPU the operations of torch."""
    training = Training(*overrides, f"n_envs={config.n_envs}")
    cuda = training.setup.device.kind == "cuda"

    def iterate() -> float:
        began = time.perf_counter()
        for _ in range(ITERATIONS):
            training.iterate()
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / ITERATIONS

    training.take(WARM_UP * training.steps)
    alone = iterate()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as seen:
        iterate()
    events = [(each.self_device_time_total if cuda else each.self_cpu_time_total, each.count, each.key) for each in seen.key_averages()]
    kernels = [
        {"kernel": short(name), "launches": count / ITERATIONS, "us": round(spent / ITERATIONS, 1)}
        for spent, count, name in sorted(events, reverse=True)
        if spent > 0
    ]
    memory = {"bytes": torch.cuda.max_memory_allocated()} if cuda else {}
    told = {"steps": training.steps, "us": round(1e6 * alone, 1), "training_steps_per_s": training.steps / alone}
    return told | memory | {"plan": str(training.setup.plan), "kernels": kernels[:SHOWN]}


def short(name: str) -> str:
    """Return a readable name of a kernel."""
    if own := KERNEL.search(name):
        return f"{own[1].removesuffix('_cuda')}: {own[2].strip('_')}"
    operation = OPERATION.search(name)
    return f"torch: {operation[1] if operation else name[:60]}"


def sizes_in_time(
    until: float, rate: float, sizes: Sequence[int], overrides: Sequence[str], iterations: int, find: Callable[[Config], Row]
) -> Iterator[Row]:
    """Yield what is found with each size, as long as the next one ends in time by the rate and the time of the former."""
    spent = 0.0
    for n_envs in sizes:
        try:
            config = compose([*overrides, f"n_envs={n_envs}"])
        except UserError as error:  # such as too little memory
            yield {"cut": f"{n_envs:,} environments and more: {error}"}
            return
        needs = spent + (iterations * n_envs * config.agent.horizon / rate if rate else 0.0)
        if time.time() + needs > until:
            yield {"cut": f"{n_envs:,} environments and more: about {needs:.0f} s, which are not left"}
            return
        began = time.time()
        row = find(config)
        rate, spent = row["training_steps_per_s"], time.time() - began
        yield {"n_envs": n_envs} | row


def main(what: str, until: str, rate: str, sizes: str, *overrides: str) -> None:
    """Print a line for every size."""
    counts = [int(size) for size in sizes.split(",")]
    if what == "iterate":
        training = Training(*overrides, f"n_envs={counts[0]}", "engine.capture=false")
        training.take(WARM_UP * training.steps)
        return
    finds: dict[str, tuple[int, Callable[[Config], Row]]] = {
        "compile": (0, compiled),
        "bench": (OF_BENCH, measured),
        "profile": (OF_PROFILE, lambda config: profiled(config, overrides)),
    }
    for row in sizes_in_time(float(until), float(rate), counts, overrides, *finds[what]):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
