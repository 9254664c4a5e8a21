"""An environment file of a user whose rewards its parts determine, and settings of a run of it that takes a second."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.finished import QUIET

SMALL = [*QUIET, "agent=a2c", "n_envs=4", "agent.horizon=8", "total_steps=32", "agent.network.hidden=[4]", "engine.fused=false"]
SMALL += ["eval.every=auto", "eval.episodes=4"]


def glider(
    imports: str = "",
    parts: str = "",
    step: str = "s",
    reward: str = "1.0",
    settings: str = "",
    *,
    after: str = "s.x",
    over: str = "False",
    reset: str = "",
    start: str = "0.0",
    kind: str = "float32",
    choices: int = 2,
    limit: int = 10,
) -> str:
    """Return the text of an environment whose state is a number `x`, with episodes of `limit` steps.

    `imports` are lines in front of its first class, `parts` those behind `State`, `step` the arguments of the function `step`, `reward` an
    expression of these, and `settings` further arguments of `single_agent`. `after` and `over` are expressions, too: what `x` becomes, and
    whether the episode ends; `reset` are the arguments of the function `reset`, and `start` is where it begins.
    """
    return f"""
from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, int32, single_agent
{imports}


class State(NamedTuple):
    x: {kind}

{parts}

def reset({reset}):
    return State({start})


def step({step}):
    return State({after}), {reward}, {over}


def observe(s):
    return (s.x,)


environment = single_agent(
    state=State, observation=Box(1), action=Discrete({choices}), reset=reset, step=step, observe=observe, time_limit={limit}, {settings}
)
"""


def uncompiled(program: str) -> str:
    """Run a program in a process of its own, where nothing is compiled; return what it prints."""
    asked = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
