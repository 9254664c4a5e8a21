"""Jobs that train nothing: what they do follows from their seed."""

import os
import signal
import sys
import time
from pathlib import Path

from warprun.runs import rundir
from warprun.simulation import members
from warprun.sweeps import plan

FAILS, DIES, CANNOT_BEGIN, WAITS = 1, 2, 3, 4
"""Seeds of jobs that are not like the others."""


def train(folder: str, number: int, trusted: bool = False) -> int:
    """End as the seed of the job says; the return is the seed."""
    job = plan.read(Path(folder)).jobs[number]
    seed = int(next(o for o in job.overrides if o.startswith("seed=")).removeprefix("seed="))
    if seed == CANNOT_BEGIN:
        sys.exit(9)
    job.folder.mkdir(parents=True, exist_ok=True)
    job.run.mkdir(exist_ok=True)
    held = rundir.Held(job.folder)
    attempts = len(list(job.folder.glob("attempt*"))) + 1
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    (job.folder / f"attempt{attempts}").write_text(f"{cores} {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    (job.folder / "process").write_text(str(os.getpid()))
    (job.folder / "member").write_text(str(members.inside()))
    (job.folder / "blocked").write_text(" ".join(str(int(number)) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    rundir.write_status(job.folder, {"state": "running", "attempts": attempts})
    if seed == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == WAITS:
        time.sleep(600)
    rundir.write_status(job.run, {"state": "finished", "env_steps": 5000, "wall_s": 2.0, "eval": float(seed), "eval_stderr": 0.25})
    fails = seed == FAILS
    rundir.write_status(
        job.folder,
        {"state": "failed" if fails else "finished", "attempts": attempts} | ({"error": "RuntimeError: the disk is full"} if fails else {}),
    )
    held.release()
    return int(fails)
