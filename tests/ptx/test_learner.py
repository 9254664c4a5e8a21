"""Every CUDA kernel of the learner, as PTX on the CPU: what float64 gives, in any order of threads, and no hazard."""

import pytest

from tests.ptx.build import NEEDED
from tests.ptx.learning import check, parts, tolerance

pytestmark = NEEDED

BY_DEFAULT = "gradient: ppo multi masked, relu 17-5-9, 100 rows"


CASES = [name if name == BY_DEFAULT else pytest.param(name, marks=pytest.mark.long) for name in parts()]


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_what_float64_does(name: str) -> None:
    assert check(parts()[name], tolerance(name)) == []
