"""Every CUDA kernel of every environment, as PTX: the trajectories of the CPU in any order of threads, no hazard."""

from __future__ import annotations

import pytest

from tests.ptx.build import problem
from tests.ptx.rolling import FLAWED, check, clear, machine, on_machine, sizes_of, ways_of, wrong_in
from tests.simulation.rollouts import CASES

pytestmark = pytest.mark.skipif(problem() is not None, reason=problem() or "")

BY_DEFAULT = {("cartpole", "stepwise"), ("cartpole", "fused tanh")}
ALSO = {*FLAWED, "market", "crane_squashed"}
"""Environments of the tests whose kernels no shipped one has: invalid numbers, several groups, squashed actions."""


def cases() -> list[object]:
    """Return environment and way: shipped ones are `long`, those of the tests `slow` but for a few."""
    found = []
    for name in [*CASES, *FLAWED]:
        shipped = name in ALSO or CASES[name].module.startswith("warprun.envs")
        for way in ways_of(name):
            often = (shipped and way != "replacing") or name in ("cartpole", *FLAWED)
            mark = () if (name, way) in BY_DEFAULT else pytest.mark.long if often else pytest.mark.slow
            found.append(pytest.param(name, way, marks=mark, id=f"{name}, {way}"))
    return found


@pytest.mark.parametrize(("name", "way"), cases())
def test_rollouts_are_those_of_the_cpu(name: str, way: str) -> None:
    assert check(name, way, sizes_of(name)) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_full_blocks_read_no_shared_memory_that_nobody_wrote(name: str) -> None:
    clear(machine())
    for n_envs in (32, 64):
        on_machine(ways_of(name)["fused tanh"].run, n_envs)
    assert machine().seen["rollout"].launches == 4
    assert wrong_in(machine(), full=True) == []
