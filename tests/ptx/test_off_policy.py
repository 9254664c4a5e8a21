"""The kernels of off-policy agents, as PTX on the CPU: what float64 and torch give, in any order of threads, and no hazard."""

import pytest

from tests.ptx.build import NEEDED
from tests.ptx.learning import check
from tests.ptx.off_policy import parts

pytestmark = NEEDED

BY_DEFAULT = ("replay memory: two sources", "sac constant, batch of 5, relu 17-5")
CASES = [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.long) for name in parts()]


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_what_float64_does(name: str) -> None:
    assert check(parts()[name]) == []
