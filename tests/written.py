"""Files that tests write: small environments and their configs, as users write them, and programs."""

from collections.abc import Mapping
from pathlib import Path


def add_environment(folder: Path, name: str, more: str = "", module: str = "") -> None:
    """Write the config of an environment, whose module is ./NAME.py unless `module` says another; `more` are further lines."""
    file = folder / "conf" / "env" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"name: {name}\nmodule: {module or f'./{name}.py'}\n{more}")


ENVIRONMENT = """\
import math
from typing import NamedTuple

import numpy as np

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.random import uniform


class State(NamedTuple):
    x: {kind}


class Tables(NamedTuple):
    numbers: np.ndarray


def step(s, {takes}):
    return {step}


environment = single_agent(
    state=State, observation=Box(1), action=Discrete({choices}), reset={reset}, step=step, observe=lambda s: (s.x,), time_limit={limit},
    {more}
)
"""


def environment_of_one_number(
    step: str,
    *,
    takes: str = "action",
    kind: str = "float32",
    choices: int = 2,
    reset: str = "lambda: State(0)",
    limit: int = 9,
    more: str = "",
) -> str:
    """Return the module of an environment whose state is the number `x`; `step` is what its step returns, `more` are further arguments."""
    return ENVIRONMENT.format(step=step, takes=takes, kind=kind, choices=choices, reset=reset, limit=limit, more=more)


def add_programs(folder: Path, programs: Mapping[str, str], interpreter: str = "/bin/bash") -> None:
    """Write a folder of programs, name -> text."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!{interpreter}\n{text}\n")
        (folder / name).chmod(0o755)
