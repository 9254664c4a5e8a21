"""Measure the time from a command to its end, with an empty cache of kernels and with a filled one.

    python scripts/bench/startup.py [rounds=3] [KEY=VALUE ...]

The other settings are those of the command; without any it is `warprun env=cartpole agent=a2c`, which ends when CartPole is solved. Every
round takes a new, empty cache, runs the command, and runs it again. The table has the medians of the rounds: seconds on the clock, and
seconds of processor time in all processes, which depend less on what else the machine does.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

COMMAND = ["env=cartpole", "agent=a2c"]


def main(arguments: list[str]) -> None:
    """Print the table."""
    own = [argument for argument in arguments if argument.startswith("rounds=")]
    command = [argument for argument in arguments if argument not in own] or COMMAND
    rounds = int(own[-1].partition("=")[2]) if own else 3
    print(f"warprun {' '.join(command)}: medians of {rounds}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    spent: dict[str, list[tuple[float, float]]] = {"empty cache": [], "filled cache": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for times in spent.values():
                times.append(run(command, folder))
    print(f"{'':14}{'seconds':>10}{'processor':>12}")
    for name, times in spent.items():
        clock, processor = (statistics.median(each) for each in zip(*times, strict=True))
        print(f"{name:14}{clock:10.1f}{processor:12.1f}")
    print(f"load at the end {os.getloadavg()[0]:.1f}")


def run(command: list[str], folder: str) -> tuple[float, float]:
    """Run the command with its cache and its output in `folder`; return seconds on the clock and of processor time."""
    environment = os.environ | {"WARPRUN_CACHE_DIR": folder}
    program = [sys.executable, "-m", "warprun", *command, f"output_root={folder}/outputs"]
    before, began = processor_time(), time.perf_counter()
    subprocess.run(program, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began, processor_time() - before


def processor_time() -> float:
    """Return the processor time of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(sys.argv[1:])
