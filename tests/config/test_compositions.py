"""Configs that are made from others are those that Hydra composes."""

from __future__ import annotations

import pytest

from warprun.config import compositions
from warprun.config.compose import compose
from warprun.config.compositions import Compositions
from warprun.config.schema import to_dict
from warprun.errors import UserError


@pytest.fixture
def composed(monkeypatch):
    """Return the overrides that Hydra has composed."""
    seen: list[list[str]] = []

    def recorded(overrides):
        seen.append(list(overrides))
        return in_full(overrides)

    in_full = compositions.composed
    monkeypatch.setattr(compositions, "composed", recorded)
    return seen


@pytest.mark.by_default(4)
@pytest.mark.parametrize(
    "overrides",
    [
        "seed={}",
        "max_minutes=1{} eval.every=never",
        "seed={} agent.learning_rate=1e-{} agent.epochs={}",
        "agent=a2c agent.gamma=0.9{} n_envs={}e2 total_steps={}e5",
        "env=pendulum agent=td3 env.params.mass=1.{} agent.learning_rate=.00{}",
        "run_dir=some_where/{} seed={} tuned=none",
        "experiment=warpsci_cartpole seed={} n_envs=1{}0",
        "env=tag_gridworld agent.groups.taggers.gamma=0.9{}",
        "agent=dqn agent.network=lstm agent.horizon=1{} agent.replay.sequence=1{}",
    ],
)
def test_numbers_are_put_in_their_places(overrides, composed):
    found = Compositions()
    for n in (2, 3, 7):
        given = overrides.replace("{}", str(n)).split()
        mine, theirs = found.compose(given), compose(given)
        assert mine == theirs and to_dict(mine) == to_dict(theirs)
    assert len(composed) == 1


OTHERS = ["agent.horizon=1{} n_envs=${agent.horizon}", "concurrency=ddp concurrency.processes=2 n_envs=10{}", "n_envs=auto seed={}"]


@pytest.mark.parametrize("overrides", [*OTHERS, "experiment=mine agent.horizon=1{}"])
def test_hydra_composes_what_depends_on_other_settings(overrides, composed, tmp_path, monkeypatch):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text("# @package _global_\nenv:\n  time_limit: ${agent.horizon}\n")
    monkeypatch.chdir(tmp_path)
    found = Compositions()
    for n in (2, 3):
        given = overrides.replace("{}", str(n)).split()
        assert to_dict(found.compose(given)) == to_dict(compose(given))
    assert len(composed) == 2


@pytest.mark.parametrize("wrong", ["n_envs=1.5", "n_envs=0", "agent.gamma=1.5", "agent.horizon=99999999999999999999", "seed=-1"])
def test_mistakes_are_told_as_ever(wrong):
    found = Compositions()
    key = wrong.partition("=")[0]
    found.compose([{"agent.gamma": "agent.gamma=0.5", "n_envs": "n_envs=64"}.get(key, f"{key}=16")])
    with pytest.raises(UserError) as mine:
        found.compose([wrong])
    with pytest.raises(UserError) as theirs:
        compose([wrong])
    assert str(mine.value) == str(theirs.value)
