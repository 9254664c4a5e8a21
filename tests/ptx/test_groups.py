"""Every CUDA kernel of environments with several actors, a block each: as `test_environments.py`."""

from __future__ import annotations

import pytest

from tests.ptx.build import NEEDED
from tests.ptx.rolling import check, marked, sizes_of

pytestmark = NEEDED


@pytest.mark.parametrize(("name", "way"), marked(several=True))
def test_rollouts_are_those_of_the_cpu(name: str, way: str) -> None:
    assert check(name, way, sizes_of(name)) == []
