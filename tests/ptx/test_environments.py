"""Every CUDA kernel of environments with one actor: the trajectories of the CPU in any order of threads, no hazard."""

from __future__ import annotations

import pytest

from tests.ptx.build import NEEDED
from tests.ptx.rolling import check, clear, machine, marked, on_machine, sizes_of, ways_of, wrong_in

pytestmark = NEEDED


@pytest.mark.parametrize(("name", "way"), marked(several=False))
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
