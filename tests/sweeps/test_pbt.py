"""Population-based training: who is replaced by whom, with which settings, also if the command is killed. Nothing is trained."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from warprun.errors import UserError
from warprun.runs import rundir
from warprun.sweeps import pbt, plan
from warprun.sweeps.launch import TuneSettings
from warprun.sweeps.study import read_space

SEARCH = ["env=cartpole", "agent.learning_rate=tag(log,interval(1e-5,1e-1))", "agent.horizon=int(interval(8,64))", "agent=a2c,ppo"]
SETTINGS = TuneSettings(sampler="pbt", members=8, every=1000)
BEST_RATE = 1e-3


def settings_of(job: plan.Job) -> dict[str, str]:
    return dict(override.partition("=")[::2] for override in job.overrides)


def population(folder, settings=SETTINGS) -> pbt.Population:
    space = read_space(SEARCH)
    return pbt.Population(plan.studied(folder, space.text), space, settings, total_steps=5000)


def begin(folder) -> pbt.Population:
    folder.mkdir()
    return population(folder)


def train(one: pbt.Population, job: plan.Job, failing: tuple[int, ...] = ()) -> None:
    """Train a part of a run: its return is the higher the nearer its learning rates were to the best one."""
    settings = settings_of(job)
    job.run.mkdir(exist_ok=True)
    job.folder.mkdir(parents=True, exist_ok=True)
    history = job.run / "history"
    with history.open("a") as file:
        file.write(f"{settings['agent.learning_rate']} {settings['seed']}\n")
    rates = [float(line.split()[0]) for line in history.read_text().splitlines()]
    state = "failed" if job.number in failing else "finished"
    returned = -sum(abs(math.log(rate / BEST_RATE)) for rate in rates)
    rundir.write_status(job.run, {"state": state, "env_steps": int(settings["until_steps"]), "wall_s": 1.0, "eval": returned})
    rundir.write_status(job.folder, {"state": state, "attempts": 1})
    one.ended(job)


def finish(one: pbt.Population, failing: tuple[int, ...] = ()) -> None:
    while job := one.next():
        train(one, job, failing)


def test_the_worst_go_on_as_the_best(tmp_path, monkeypatch):
    one = begin(tmp_path / "s")
    first = [dict(values) for values in one.values]
    jobs = [one.next() for _ in range(8)]
    assert one.next() is None
    for job in jobs:
        assert settings_of(job)["until_steps"] == "1000"
        train(one, job)
    distance = [abs(math.log(float(values["agent.learning_rate"]) / BEST_RATE)) for values in first]
    order = sorted(range(8), key=lambda n: distance[n])
    assert {exchange.member for exchange in one.exchanges} == set(order[-2:])
    assert {exchange.parent for exchange in one.exchanges} <= set(order[:2])
    for exchange in one.exchanges:
        child, parent = one.values[exchange.member], first[exchange.parent]
        changed = float(child["agent.learning_rate"]) / float(parent["agent.learning_rate"])
        assert min(abs(changed - 0.8), abs(changed - 1.2)) < 1e-3
        assert 8 <= int(child["agent.horizon"]) <= 64 and child["agent"] in ("a2c", "ppo")
        job, its_parent = jobs[exchange.member], jobs[exchange.parent]
        assert (job.run / "history").read_text() == (its_parent.run / "history").read_text()
    for n in order[:-2]:
        assert one.values[n] == first[n]
    assert [settings_of(job)["until_steps"] for job in plan.read(tmp_path / "s").jobs] == ["2000"] * 8
    finish(one)
    assert one.round == one.rounds == 5 and len(one.exchanges) == 8
    best = one.best
    assert best and len((best.run / "history").read_text().splitlines()) == 5
    monkeypatch.setattr(pbt, "derived", lambda settings: ["agent.epochs=7"])
    written = one.write_best(best).read_text()
    assert "until_steps" not in written and "epochs: 7" in written


def test_a_member_that_fails_is_replaced_whatever_its_return_was(tmp_path):
    one = begin(tmp_path / "s")
    jobs = [one.next() for _ in range(8)]
    failing = (1, 4, 5)
    for job in jobs:
        train(one, job, failing)
    assert set(failing) <= {exchange.member for exchange in one.exchanges}
    assert not {exchange.parent for exchange in one.exchanges} & set(failing)
    for n in failing:
        assert rundir.read_status(jobs[n].run)["state"] == "finished"


def test_nothing_follows_if_all_fail_and_settings_of_members_cannot_be_given(tmp_path):
    one = begin(tmp_path / "s")
    finish(one, failing=tuple(range(8)))
    assert one.round == 1 and one.best is None and not one.exchanges
    space = read_space([*SEARCH, "seed=3"])
    with pytest.raises(UserError, match="leave them out"):
        pbt.Population(plan.studied(tmp_path / "t", space.text), space, SETTINGS, 5000)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("writes", range(1, 12, 2))
def test_a_command_that_is_killed_between_rounds_ends_as_one_that_is_not(tmp_path, monkeypatch, writes):
    undisturbed = begin(tmp_path / "whole")
    finish(undisturbed)
    one = begin(tmp_path / "killed")
    left = {"count": writes}

    def counted(function):
        def call(*arguments, **options):
            left["count"] -= 1
            if left["count"] < 0:
                raise KilledError
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        jobs = [one.next() for _ in range(8)]
        for job in jobs[:-1]:
            train(one, job)
        for name in ("copytree", "rmtree"):
            patch.setattr(shutil, name, counted(getattr(shutil, name)))
        patch.setattr(plan.Plan, "write", counted(plan.Plan.write))
        patch.setattr(pbt, "write_atomic", counted(pbt.write_atomic))
        train(one, jobs[-1])
        finish(one)
    finish(population(tmp_path / "killed"))
    read = [json.loads((tmp_path / name / pbt.STORE).read_text()) for name in ("whole", "killed")]
    assert read[0] == read[1]
    for mine, theirs in zip(plan.read(tmp_path / "killed").jobs, plan.read(tmp_path / "whole").jobs, strict=True):
        assert mine.overrides == theirs.overrides
        assert (mine.run / "history").read_text() == (theirs.run / "history").read_text()
