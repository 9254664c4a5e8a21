"""Measure some work on a device, for scripts/gpu_check.py: a process prints a line of JSON for everything that it finds.

    python scripts/gpu_work.py compile|bench|layers|profile|curves|iterate UNTIL WORKS

WORKS is JSON, {name: [overrides, numbers of environments]}. The small numbers of all works come first, so that each has something if time
ends. What would not end before UNTIL (seconds since 1970) does not begin, and a line says so.

- compile: all that `bench` needs.
- bench: what `warprun bench` measures, and gradient steps per second.
- layers: how far tensor cores are from float64, and what `bench` measures with them, with layers in float32, and with torch's networks.
- profile: the kernels of an iteration, the time of an iteration and its memory.
- curves: the seconds of training until an evaluation is solved, with several seeds.
- iterate: a few iterations without CUDA graphs, for a profiler around this process.
"""

from __future__ import annotations

import gc
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import patch

import torch
from common import Training, training_of
from torch.profiler import ProfilerActivity, profile

from warprun.config.compose import compose
from warprun.config.schema import Config
from warprun.errors import UserError
from warprun.runs import bench as measuring
from warprun.runs.build import threads
from warprun.runs.evaluation import Evaluator

Row = dict[str, Any]
Works = Mapping[str, tuple[str, Sequence[int]]]
"""Name -> overrides, and numbers of environments."""
NEVER = (99, 0)
"""A compute capability that no GPU has."""
SEEDS, CURVE_S = 3, 3.0
"""Curves with a number of environments, and the most seconds of training of each."""
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
    """Return what a bench of a config finds, in rounds half as long as those of `warprun bench`."""
    measuring.SECONDS = min(measuring.SECONDS, 0.15)
    (found,) = measuring.bench([config], (threads(config),))
    return asdict(found) | {"gradient_steps_per_s": found.training_steps_per_s * gradient_steps(config)}


def layered(config: Config) -> Row:
    """Return the error of tensor cores, why a run would not use them, and what a bench finds with them, in float32 and with torch."""
    # Imports Numba's CUDA part, which may be absent where there is no GPU.
    from warprun.simulation import cuda_layers

    error = cuda_layers.tensor_core_error(torch.device("cuda")) if torch.cuda.is_available() else None
    found = measured(config) | {"error": error, "why_not": cuda_layers.why_not()}
    with patch.object(cuda_layers, "NEEDED", NEVER):
        others = {"float32": measured(config)}
    others["torch"] = measured(replace(config, engine=replace(config.engine, fused=False, gradients="torch")))
    rates = "rollout_steps_per_s", "training_steps_per_s"
    return found | {f"{name}_{rate}": other[rate] for name, other in others.items() for rate in rates}


def compiled(config: Config) -> Row:
    """Compile what a bench needs; return the rate of training, which is no measurement."""
    measuring.SECONDS, measuring.ROUNDS = 0.01, 1
    return {"training_steps_per_s": measured(config)["training_steps_per_s"]}


def curves(config: Config) -> Row:
    """Return environment steps and seconds of training until an evaluation is solved, by seed; None if none is within CURVE_S.

    Evaluations cost nothing and are spaced evenly in the logarithm of steps. The first iterations are captured: each counts
    as the median of the others.
    """
    steps: list[int | None] = []
    seconds: list[float | None] = []
    for seed in range(SEEDS):
        run = Training(replace(config, seed=seed))
        times: list[float] = []
        due, reached = 1.0, False
        with closing(Evaluator(run.setup, run.agent, 100, 1000 + seed)) as evaluator:
            while not reached and sum(times) < CURVE_S:
                began = time.perf_counter()
                run.iterate()
                if run.setup.device.kind == "cuda":
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
                if len(times) >= due:
                    due *= 1.15
                    (mean,) = evaluator.play(greedy=True).mean_return.values()
                    reached = mean >= (run.config.env.solved_at or math.inf)
        steps.append(len(times) * run.steps if reached else None)
        seconds.append(len(times) * statistics.median(times[WARM_UP:] or times) if reached else None)
    return {"env_steps": steps, "s": seconds}


def profiled(config: Config) -> Row:
    """Return the kernels of an iteration with the most time, in µs, and the memory; on CPU the operations of torch."""
    run = Training(config)
    cuda = run.setup.device.kind == "cuda"

    def iterate() -> float:
        began = time.perf_counter()
        for _ in range(ITERATIONS):
            run.iterate()
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / ITERATIONS

    run.take(WARM_UP * run.steps)
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
    told = {"steps": run.steps, "us": round(1e6 * alone, 1), "training_steps_per_s": run.steps / alone}
    return told | memory | {"plan": str(run.setup.plan), "kernels": kernels[:SHOWN]}


def short(name: str) -> str:
    """Return a readable name of a kernel."""
    if own := KERNEL.search(name):
        return f"{own[1].removesuffix('_cuda')}: {own[2].strip('_')}"
    operation = OPERATION.search(name)
    return f"torch: {operation[1] if operation else name[:60]}"


def in_time(until: float, works: Works, find: Callable[[Config], Row]) -> Iterator[Row]:
    """Yield what is found of each work and size: the next size of a work begins if there is as much time as the one before took."""
    spent = dict.fromkeys(works, 0.0)
    for n_envs, work in sorted((n_envs, work) for work, (_, sizes) in works.items() for n_envs in sizes):
        if work not in spent:
            continue
        left_out, began = f"{n_envs:,} environments and more", time.time()
        if began + spent[work] > until:
            yield {"work": work, "cut": f"{left_out}: about {spent.pop(work):.0f} s, which are not left"}
            continue
        try:
            config = compose([*works[work][0].split(), f"n_envs={n_envs}"])
        except UserError as error:  # such as too little memory
            del spent[work]
            yield {"work": work, "cut": f"{left_out}: {error}"}
            continue
        yield {"work": work, "n_envs": n_envs} | find(config)
        gc.collect()  # memory that the next one needs
        spent[work] = time.time() - began


def main(what: str, until: str, given: str) -> None:
    """Print a line for every work and size."""
    works: Works = json.loads(given)
    if what == "iterate":
        ((overrides, (n_envs,)),) = works.values()
        run = training_of(*overrides.split(), f"n_envs={n_envs}", "engine.capture=false")
        run.take(WARM_UP * run.steps)
        return
    finds = {"compile": compiled, "bench": measured, "layers": layered, "profile": profiled, "curves": curves}
    for row in in_time(float(until), works, finds[what]):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
