"""Configs that are made from others are those that Hydra composes."""

from __future__ import annotations

import pytest

from tests.words import words
from warprun.config import compositions, schema
from warprun.config.compose import compose
from warprun.config.compositions import Compositions
from warprun.config.schema import from_dict, to_dict
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


CHANGED = {
    "seed=7 run_dir=elsewhere agent.learning_rate=1e-5": True,
    "agent.network.hidden=[8,8,8] eval.every=never": True,
    "agent.clip=1 total_steps=1e9": True,
    "max_minutes=2": False,  # which is null in the other one
    "agent.gamma=0.5 env.params.gravity=9": False,  # a key that the other one lacks
    "agent=a2c": False,
}


@pytest.mark.parametrize(("changes", "is_similar"), CHANGED.items())
def test_a_saved_config_is_read_like_a_similar_one(changes, is_similar, monkeypatch):
    similar, wanted = (
        compose([*words("env=cartpole agent=ppo run_dir=here agent.network.hidden=[4]"), *given.split()]) for given in ("", changes)
    )
    full = []
    monkeypatch.setattr(schema, "from_dict", lambda saved: full.append(from_dict(saved)) or full[0])
    found = schema.from_saved(to_dict(wanted), similar)
    assert found == from_dict(to_dict(wanted)) and type(found.agent) is type(wanted.agent)
    assert bool(full) != is_similar


@pytest.mark.parametrize("wrong", ["missing", "more", "text", "whole"])
def test_a_saved_config_of_another_version_or_with_other_types_is_read_in_full(wrong):
    similar = compose(["env=cartpole", "agent=ppo"])
    saved = to_dict(similar)
    if wrong == "missing":
        del saved["eval"]["group"]
    elif wrong == "more":
        saved["eval"]["of_tomorrow"] = 1
    else:
        saved["agent"]["gamma"] = "much" if wrong == "text" else 1
    if wrong in ("more", "text"):
        with pytest.raises(UserError, match="does not fit this version of warprun"):
            schema.from_saved(saved, similar)
    else:
        found = schema.from_saved(saved, similar)
        assert found == from_dict(saved) and type(found.agent.gamma) is float


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
