"""Throughput of two data-parallel processes against one process on one core, alternating. Run it with nothing else on the machine.

    python scripts/bench/ddp_speed.py [repeats]

One process is pinned to core 0; the two processes of concurrency=ddp get a core each. The figure is env_steps/s of a run without
evaluations, from the records after the first fifth.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = [
    "env=cartpole",
    "agent=ppo",
    "tuned=none",
    "device=cpu",
    "concurrency.threads=1",
    "n_envs=8192",
    "agent.horizon=32",
    "total_steps=2e7",
]
QUIET = [
    "stop_when_solved=false",
    "eval.every=never",
    "eval.episodes=1",
    "eval.final_episodes=1",
    "log.live=false",
    "log.tensorboard=false",
]


def speed(folder: Path, processes: int) -> float:
    """Return the environment steps per second of a run."""
    several = [] if processes == 1 else ["concurrency=ddp", f"concurrency.processes={processes}"]
    cores = {0} if processes == 1 else set(range(processes))
    command = [sys.executable, "-m", "warprun", *RUN, *QUIET, *several, f"run_dir={folder}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["perf/env_steps_per_s"] for row in rows[len(rows) // 5 :])


def main() -> None:
    """Print the throughput of both and their ratio."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for processes, speeds in found.items():
            with tempfile.TemporaryDirectory() as folder:
                speeds.append(speed(Path(folder) / "run", processes))
                print(f"processes={processes} env_steps/s={speeds[-1]:,.0f} load={os.getloadavg()[0]:.1f}", flush=True)
    print(f"ratio of medians {statistics.median(found[2]) / statistics.median(found[1]):.2f}")


if __name__ == "__main__":
    main()
