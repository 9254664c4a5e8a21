"""With engine.debug what a rollout has to write is NaN before it; nothing reads it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.finished import QUIET, weights
from tests.selection import few
from tests.simulation.rollouts import CASES, engine_of, record
from warprun.config.compose import compose
from warprun.runs.train import train
from warprun.simulation.codegen.expressions import Expressions
from warprun.simulation.device import choose


@pytest.mark.by_default(2)
@pytest.mark.parametrize("name", few(CASES, "cartpole", "market", "crane", "leaving", "tag_continuous"))
def test_rollouts_stay(name):
    plain, debugged = (record(engine_of(CASES[name], name, choose("cpu"), debug=debug), CASES[name].collects) for debug in (False, True))
    for array in plain:
        np.testing.assert_array_equal(plain[array], debugged[array], array)


@pytest.mark.by_default(3)
@pytest.mark.parametrize(
    "run",
    [
        ["env=cartpole", "agent=a2c", "agent.horizon=8", "total_steps=768"],
        ["env=cartpole", "agent=ppo", "agent.horizon=8", "total_steps=768", "env.time_limit=7"],
        ["env=cartpole", "agent=dqn", "agent.learning_starts=64", "agent.batch_size=16", "total_steps=320"],
        ["env=pendulum", "agent=td3", "agent.learning_starts=64", "agent.batch_size=16", "total_steps=320", "env.time_limit=9"],
        ["env=pendulum", "agent=sac", "agent.learning_starts=64", "agent.batch_size=16", "total_steps=320", "env.time_limit=9"],
    ],
    ids=lambda run: f"{run[0]} {run[1]}",
)
def test_trainings_stay(run, tmp_path):
    for name in ("plain", "debugged"):
        train(compose([*QUIET, *run, "n_envs=32", f"run_dir={tmp_path}/{name}", f"engine.debug={name == 'debugged'}"]))
    plain, debugged = (weights(tmp_path / name) for name in ("plain", "debugged"))
    assert all(torch.equal(plain[name], debugged[name]) for name in plain)


def test_a_number_that_nobody_writes_shows(monkeypatch):
    monkeypatch.setattr(Expressions, "reductions", lambda *given: "")
    case = replace(CASES["market"], vary=())
    found = record(engine_of(case, "market", choose("cpu"), debug=True), 1)
    assert np.isnan(found["regulator.obs"]).any()
