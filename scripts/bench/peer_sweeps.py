"""Populations of agents that warprun trains by one command: from the command to its end."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import peer_work as spec
from peer_warprun import settings_of
from peer_work import Iterate, Sweep, Work

LEAN = ["log.tensorboard=false", "log.every=10%", "checkpoint.best=false", "eval.every=never", "eval.final_episodes=20"]
"""Records and evaluations of agents that are only timed."""

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""


def prepare(work: Work | Sweep, variant: str, agents: int, threads: int) -> tuple[Iterate, str]:
    """Return a sweep over seeds; it gives the environment steps of all agents, or the number of agents that it has solved."""
    if isinstance(work, Sweep):
        words = [work.settings]
    else:
        trained = work._replace(separate=variant == "separate")
        words = ["env=cartpole", *settings_of(trained), f"n_envs={spec.AGENT_ENVS}", f"total_steps={spec.AGENT_STEPS}", *LEAN]
        words.append("stop_when_solved=false")
    # What a command leaves behind becomes a child of this process, so that its time is counted, too.
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    words += [f"seed=range(0,{agents})", f"launcher.workers={threads}"]

    def iterate() -> int:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "warprun", "-m", *words, f"sweep_dir={folder}/sweep"]
            subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
            with suppress(ChildProcessError):
                while True:
                    os.wait()
            ended = [json.loads(path.read_text()) for path in Path(folder, "sweep").glob("[0-9]*/status.json")]
        return sum(each["state"] == "solved" if isinstance(work, Sweep) else each["env_steps"] for each in ended)

    return iterate, f"one command, {threads} workers"
