"""Every CUDA kernel of environments: the trajectories of the CPU in any order of threads, no hazard."""

import pytest

from tests.ptx.build import NEEDED
from tests.ptx.project import DEVICE, on
from tests.ptx.rolling import check, clear, machine, marked, on_machine, sizes_of, ways_of, wrong_in
from tests.simulation.test_faults import PLANTED, find, same

pytestmark = NEEDED


@pytest.mark.parametrize(("name", "way"), marked())
def test_rollouts_are_those_of_the_cpu(name: str, way: str) -> None:
    assert check(name, way, sizes_of(name)) == []


@pytest.mark.long
def test_full_blocks_read_no_shared_memory_that_nobody_wrote() -> None:
    clear(machine())
    for n_envs in (32, 64):
        on_machine(ways_of("cartpole")["fused tanh"].run, n_envs)
    assert machine().seen["rollout"].launches == 4
    assert wrong_in(machine(), full=True) == []


@pytest.mark.slow
@pytest.mark.parametrize(("case", "fused"), [*((case, False) for case in PLANTED), ("reward inf", True), ("mask", True)])
def test_a_planted_fault_is_found_where_it_is(case: str, fused: bool) -> None:
    clear(machine())
    with on(machine()):
        assert same(find(case, DEVICE, fused), PLANTED[case][1])
