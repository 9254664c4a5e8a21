"""What each action changes, by trial: options that are never allowed together are not alike."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.simulation.rollouts import make
from warprun.checking.effects import actions
from warprun.checking.machine_code import instructions, loops_without_vectors
from warprun.checking.processes import Helper
from warprun.environment import Box, Discrete, int32, single_agent


class State(NamedTuple):
    last: int32


def reset():
    return State(0)


def step(s, action):
    return State(action), 1.0 if action > 1 else 0.0, False


def observe(s):
    return (s.last,)


def mask(s, k):
    """Allow 2, and 0 or 1: never both of these."""
    return k == 2 or (k == 0) == (s.last == 2)


def alone(s, k):
    return k == (s.last + 1) % 3


@pytest.mark.long
def test_masks_are_no_reason_for_doubt():
    for allowed in (mask, alone):
        environment = single_agent(
            state=State, observation=Box(1), action=Discrete(3), reset=reset, step=step, observe=observe, mask=allowed, time_limit=9
        )
        assert list(actions(make(environment, allowed.__name__, n_envs=8, horizon=1, seed=1))) == []


# Which loops LLVM did not turn into vectors, read from its remarks ----------------------------------------------------

SOURCE = """\
def step_tile(tile):
    for actor in range(1):
        for lane in range(count):
            # mine/tank.py:7 fill
            s0 = fill_function(f[0, actor, lane])
    for actor in range(1):
        for lane in range(count):
            # mine/tank.py:12 observe
            obs[lane] = observe_function(f[0, actor, lane])
"""


def test_a_loop_is_told_unless_llvm_says_that_it_is_vectors() -> None:
    said = (
        "remark: <unknown>:3:0: vectorized loop (vectorization width: 16, interleaved count: 1)\n"
        "remark: x_kernels.py:8:0: loop not vectorized: control flow cannot be substituted for a select\n"
    )
    said += "remark: tank.py:8:0: vectorized loop (vectorization width: 16, interleaved count: 1)\n"  # a loop of the user
    found = loops_without_vectors(SOURCE, said)
    assert list(found) == ["mine/tank.py:12 observe"]
    assert "where()" in found["mine/tank.py:12 observe"]


def test_names_in_ptx_are_no_instructions() -> None:
    assert ".f64" not in instructions("mov.b32 %r1, my_name.f64_x; // .f64")
    assert ".f64" in instructions("add.f64 %fd1, %fd2, %fd3;")


@pytest.mark.by_default(0)
def test_the_code_of_an_environment_is_looked_into(tmp_path: Path) -> None:
    """CartPole is vectors on CPU; loops that lanes leave at different times are cut from code with debug information, too."""
    with Helper("machine_code", tmp_path, "env=cartpole") as looking:
        found, problem = looking.result()
    assert not problem
    assert found["loops"] == {} and not found["doubles in CPU code"]
