"""A2C on CartPole by warprun and by cartpole_limit.c, a yardstick: the shares of docs/benchmarks/throughput.md.

`python scripts/reproduce.py --only limit` measures them. Needs gcc.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from common import rate, training_of

SOURCE = Path(__file__).with_name("cartpole_limit.c")
FLAGS = ("-O2", "-march=native", "-ffast-math", "-pthread")
THREADS, ENVIRONMENTS, SECONDS = 2, 10_048, 2.0
"""157 tiles of 64 environments."""


def c_program(units: int) -> dict[str, float]:
    """Return million steps per second of rollouts and of training by the C program."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/limit"
        subprocess.run(["gcc", *FLAGS, f"-DH={units}", str(SOURCE), "-o", program, "-lm"], check=True)
        done = subprocess.run([program, str(THREADS), str(ENVIRONMENTS), str(SECONDS)], check=True, capture_output=True, text=True)
    found = re.search(r"rollout ([\d.]+), training ([\d.]+)", done.stdout)
    if not found:
        raise ValueError(f"the program printed {done.stdout!r}")
    return {"rollout": float(found[1]), "training": float(found[2])}


def warprun(units: int) -> dict[str, float]:
    """Return the same of warprun, with normalized advantages and without normalized observations and rewards."""
    network = f"agent.network.hidden=[{units},{units}]"
    plain = ("agent.normalize_obs=false", "agent.normalize_reward=false", f"concurrency.threads={THREADS}", "device=cpu")
    run = training_of("env=cartpole", "agent=a2c", "tuned=none", "agent.horizon=16", network, f"n_envs={ENVIRONMENTS}", *plain)
    for _ in range(20):  # machine code replaces the calls of an update after some iterations
        run.iterate()
    return {"rollout": rate(run.rollout, SECONDS) / 1e6, "training": rate(run.iterate, SECONDS) / 1e6}


def shares() -> dict[str, float]:
    """Return million steps per second of both programs, and the shares that warprun reaches."""
    found: dict[str, float] = {}
    for units in (64, 32):
        limit, own = c_program(units), warprun(units)
        for kind, most in limit.items():
            found |= {f"C {units} {kind}": most, f"warprun {units} {kind}": own[kind], f"share {units} {kind}": own[kind] / most}
    return {name: round(value, 4) for name, value in found.items()}
