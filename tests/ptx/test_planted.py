"""Twenty mistakes planted in kernels of warprun: the machine knows each by what gives it away, and 20 of 20 are caught."""

from __future__ import annotations

import pytest

from tests.ptx.build import problem
from tests.ptx.planted import PLANTED, SUBJECTS, Planted, evidence

pytestmark = pytest.mark.skipif(problem() is not None, reason=problem() or "")

BY_DEFAULT = {0, 1, 10, 15, 17}


def test_twenty_are_planted() -> None:
    assert len(PLANTED) == len({planted.mistake.name for planted in PLANTED}) == 20


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(planted, marks=() if n in BY_DEFAULT else pytest.mark.long, id=f"{planted.subject}: {planted.mistake.name}")
        for n, planted in enumerate(PLANTED)
    ],
)
def test_each_is_caught(planted: Planted) -> None:
    found = evidence(planted.subject, planted.mistake)
    assert planted.mistake.made
    assert planted.by in found


@pytest.mark.long
@pytest.mark.parametrize("subject", SUBJECTS)
def test_without_a_mistake_nothing_is_caught(subject: str) -> None:
    assert evidence(subject) == set()
