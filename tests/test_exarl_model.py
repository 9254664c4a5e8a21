"""The model of sleeping ranks gives what follows from its times."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("simpy")
SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def exarl(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from exarl import model, page, small

    yield {module.__name__.partition(".")[2]: module for module in (model, page, small)}
    for name in [name for name in sys.modules if name.split(".")[0] == "exarl"]:
        del sys.modules[name]


def test_rates_are_those_that_follow_from_the_times(exarl):
    """One learner is as fast as its updates or, with too few actors, as these; one actor of `async` does one after the other."""
    model = exarl["model"]
    given = model.Times(train=0.1, act=0.03, push=0.001, pop=0.002, show=0.004, read=0.001, message=0.005, pause=0.0)
    one_after_the_other = given.train + given.act + 2 * given.message
    assert model.simulate("async", 1, 1, given, 100).rate == pytest.approx(1 / one_after_the_other)
    for actors in (1, 4):
        full = given.train + given.pop + given.show
        assert model.simulate("queue", 1, actors, given, 100).rate == pytest.approx(1 / full)
    slow = replace(given, act=0.5)
    assert model.simulate("queue", 1, 2, slow, 100).rate == pytest.approx(2 / (slow.act + slow.push + slow.read), rel=0.02)
    averaged = replace(given, average=0.01)
    assert model.simulate("queue", 4, 8, averaged, 400).rate == pytest.approx(4 / (full + 0.02), rel=0.01)


def test_lag_and_repetitions_are_those_of_the_protocols(exarl):
    model = exarl["model"]
    given = model.Times(train=0.1, act=0.01, pause=0.0)
    assert model.simulate("async", 1, 1, given, 50).lag == 0
    assert model.simulate("async", 1, 6, given, 200).lag == pytest.approx(5)
    for protocol in ("async", "queue", "exarl_async"):
        found = model.simulate(protocol, 2, 6, given, 200)
        assert found.unique == pytest.approx(found.rate)
    slow = replace(given, act=1.0)
    assert model.simulate("range", 1, 2, slow, 400).unique == pytest.approx(2 / slow.act, rel=0.1)


def test_random_reads_repeat_as_the_closed_form_says(exarl):
    """Actors are fast, so a rollout is read again only by another learner in the same update."""
    model, small = exarl["model"], exarl["small"]
    given = model.Times(train=0.1, act=0.005, pause=0.0)
    for learners in (4, 8):
        found = model.simulate("random", learners, 16, given, 200 * learners)
        assert 1 - found.unique / found.rate == pytest.approx(small.redundant_share(learners), abs=0.03)


def test_collisions_are_those_of_the_closed_form(exarl):
    """P(no two of L draw the same of A) = A! / ((A - L)! A^L); by hand for two learners: 1 / A."""
    small = exarl["small"]
    assert small.collision_chance(2) == pytest.approx(1 / 16)
    assert small.redundant_share(2) == pytest.approx(1 / 32)
    assert small.collision_chance(17) == 1.0


def test_the_model_needs_quiet_times_and_two_runs(exarl):
    page = exarl["page"]
    values, quiet = {"rate": 4.0, "act_s": 0.04, "lag": 0.0, "learner_waiting": 0.1}, {"quiet": True}
    exchanged = dict.fromkeys(("push", "pop", "show", "read", "message"), 0.001)
    given = {"times round=0": quiet | {"values": exchanged}, "queue 1:1 round=0": quiet | {"values": values}}
    assert page.measured({}) is None and page.measured(given) is None
    given["queue 2:2 round=0"] = {"quiet": False, "values": values}
    assert page.measured(given) is None
    given["queue 2:2 round=0"] = quiet | {"values": values | {"rate": 8.0}}
    for number, rate in enumerate((5.0, 3.0, 5.5)):
        given[f"async 1:1 round={number}"] = quiet | {"values": values | {"rate": rate}}
    assert "| `async 1:1` | 5.00 [3.00, 5.50] |" in page.validation(page.measured(given))
