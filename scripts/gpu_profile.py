"""Profile iterations of a training: time of every kernel, and the most memory that was taken.

    python scripts/gpu_profile.py [KEY=VALUE ...]

prints two tables in markdown. On CPU there are no times of kernels.
"""

from __future__ import annotations

import sys
import time

import torch
from common import Training, head, row
from torch.profiler import ProfilerActivity, profile

from warprun.config.memory_estimate import estimate, size_text

ITERATIONS, WARM_UP, SHOWN = 10, 5, 25


def main(overrides: list[str]) -> None:
    """Train for some iterations, then profile as many."""
    training = Training(*overrides)
    cuda = training.setup.device.kind == "cuda"

    def iterate() -> float:
        began = time.perf_counter()
        for _ in range(ITERATIONS):
            training.iterate()
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / ITERATIONS

    for _ in range(WARM_UP):
        iterate()
    alone = iterate()
    speed = f"{1e3 * alone:.3f} ms for an iteration of {training.steps:,} steps, {training.steps / alone:,.0f} steps/s"
    print(f"{' '.join(overrides)}: {speed}; {training.setup.plan}\n")
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as seen:
        iterate()
    print(head("kernel", "launches of an iteration", "µs of an iteration"))
    events = seen.key_averages()
    spent = [(event.self_device_time_total if cuda else event.self_cpu_time_total, event.count, event.key) for event in events]
    for microseconds, count, name in sorted(spent, reverse=True)[:SHOWN]:
        if microseconds > 0:
            shown = name[:80].replace("|", "/")
            print(row(f"`{shown}`", f"{count / ITERATIONS:g}", f"{microseconds / ITERATIONS:.1f}"))
    print(f"\nestimated memory: {estimate(training.config, training.setup.environment, cuda)}")
    if cuda:
        free, there = torch.cuda.mem_get_info()
        print(
            f"\nmost memory: {size_text(torch.cuda.max_memory_allocated())} in tensors,"
            f" {size_text(torch.cuda.max_memory_reserved())} kept by torch; all processes together {size_text(there - free)}"
        )
    training.simulator.close()


if __name__ == "__main__":
    main(sys.argv[1:])
