"""Twenty mistakes planted in kernels of warprun: the machine knows each by what gives it away, 20 of 20."""

import pytest

from tests.ptx.build import NEEDED
from tests.ptx.planted import PLANTED, SUBJECTS, Planted, evidence

pytestmark = NEEDED

BY_DEFAULT = {0, 1, 10, 15, 17}


def test_twenty_are_planted() -> None:
    assert len(PLANTED) == len({planted.mistake.name for planted in PLANTED}) == 20


MARKS = [() if n in BY_DEFAULT else pytest.mark.long for n in range(len(PLANTED))]
CASES = [pytest.param(each, marks=marks, id=each.mistake.name) for each, marks in zip(PLANTED, MARKS, strict=True)]


@pytest.mark.parametrize("planted", CASES)
def test_each_is_caught(planted: Planted) -> None:
    found = evidence(planted.subject, planted.mistake)
    assert planted.mistake.made
    assert planted.by in found


@pytest.mark.long
@pytest.mark.parametrize("subject", SUBJECTS)
def test_without_a_mistake_nothing_is_caught(subject: str) -> None:
    assert evidence(subject) == set()
