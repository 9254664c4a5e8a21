"""The curves of scripts/scale.py: their limits, what counts, and points that are missing."""

import json
from types import SimpleNamespace

import pytest

from tests.scripts import load
from warprun.config.compose import compose
from warprun.runs.build import make_agent, set_up

scale = load("scale")


@pytest.mark.parametrize("name", scale.CURVES)
def test_settings_of_a_curve_are_what_the_page_says(name):
    curve = scale.CURVES[name]
    config = compose([*curve.settings(curve.points[1]), "concurrency.threads=1"])
    setup = set_up(config)
    agent = make_agent(setup)
    groups = setup.environment.spec.groups
    rows = sum(learner.policy.parameters.numel() * learner.actors for learner in agent.learners)
    assert agent.flops_per_env_step() == scale.ONE_PASS * rows
    assert config.agent.horizon == scale.HORIZON
    if name == "scale_actors":
        assert sum(group.size for group in groups) == curve.points[1]
        assert config.n_envs == 128
    elif name == "scale_width":
        assert [*config.agent.network.hidden] == [curve.points[1]] * 2
    else:
        assert config.n_envs == curve.points[1]
    assert setup.plan.fused


def test_a_limit_is_the_rate_of_products_over_the_operations_of_a_step(monkeypatch):
    flops_per_step, peak = 1e4, 2e11
    rates = {f"{kind}_steps_per_s": rate for kind, rate in zip(scale.KINDS, (1e9, 3e7, 5e6), strict=True)}
    share = 5e6 * flops_per_step / peak
    found = SimpleNamespace(threads=2, limit_share=share, update_share=0.5, bytes_per_env=10, **rates)
    monkeypatch.setattr(scale, "bench", lambda configs, threads: [found])
    assert scale.point(scale.CURVES["scale_a2c"], 10)["2"]["limit"] == pytest.approx(peak / flops_per_step)


def kept():
    """Return a measurement of everything whose limit is 2 million steps/s."""
    numbers = {"simulation": 9e6, "rollout": 4e6, "training": 1e6, "limit": 2e6, "bytes_per_env": 1024}
    found = {}
    for name, curve in scale.CURVES.items():
        part = {"values": {str(t): numbers for t in curve.threads}, "quiet": True, "date": "2026-11-26 01:00"}
        parts = {f"{n} round=0": part for n in curve.points}
        found[name] = {"machine": {"processor": "some", "cores": 2}, "load_before": [0.1], "parts": parts}
    return found


def test_shares_are_of_the_limit_of_the_same_work():
    # Acting is a quarter of the operations.
    assert "| 10 | 4 | 50 % | 1 | 50 % | 1 | 50 % | 160 |" in scale.of_environments(kept())


def test_points_beside_other_work_are_counted():
    found = kept()
    found["scale_a2c"]["parts"]["10 round=0"] = found["scale_a2c"]["parts"]["10 round=0"] | {"quiet": False}
    assert "1 of 25 points were measured beside other work" in scale.measured_on(found)


def test_a_page_waits_for_all_points(tmp_path, monkeypatch):
    file = tmp_path / "scale.json"
    monkeypatch.setattr(scale, "KEPT", file)
    found = kept()
    file.write_text(json.dumps(found))
    assert all(text for _, _, text in scale.places())
    del found["scale_width"]["parts"]["512 round=0"]
    file.write_text(json.dumps(found))
    assert not any(text for _, _, text in scale.places())
