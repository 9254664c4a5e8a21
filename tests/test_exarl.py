"""What one process shows of the claims of EXARL."""

import pytest

from tests.scripts import load

small = load("exarl.small")


def test_collisions_are_those_of_the_closed_form():
    """P(no two of L draw the same of A) = A! / ((A - L)! A^L); by hand for two learners: 1 / A."""
    assert small.collision_chance(2) == pytest.approx(1 / 16)
    assert small.redundant_share(2) == pytest.approx(1 / 32)
    assert small.collision_chance(17) == 1.0


def test_random_reads_collide_as_the_closed_form_says(monkeypatch):
    monkeypatch.setattr(small, "ROUNDS", 2000)
    for found in small.collisions().values():
        assert found["counted"] == pytest.approx(found["chance"], abs=0.04)
        assert found["redundant"] == pytest.approx(found["expected"], abs=0.01)
