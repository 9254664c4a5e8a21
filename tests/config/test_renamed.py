"""A key that has another name now is refused with that name, wherever it stands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from warprun import algorithms
from warprun.algorithms.settings import DQNConfig
from warprun.cli import main as cli
from warprun.config.compose import compose
from warprun.config.schema import from_dict, to_dict
from warprun.errors import UserError
from warprun.learning.renamed import RENAMED
from warprun.learning.settings import group_config

AGENT = {old: new for old, new in RENAMED.items() if old.startswith("agent.")}
OF_DQN = ("agent.epsilon", "agent.epsilon_fraction")


def agent_with(key: str) -> list[str]:
    """Return overrides that choose an agent which has the setting that `key` names."""
    return ["env=cartpole", "agent=dqn"] if key in OF_DQN else ["env=pendulum", "agent=td3"]


@pytest.mark.parametrize("old", AGENT)
def test_typed(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*agent_with(old), f"{old}=1"]) == 2
    assert capsys.readouterr().err.splitlines() == [f"warprun: error: {old} is now {AGENT[old]}"]


@pytest.mark.parametrize("old", AGENT)
def test_in_a_file_of_conf(old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_with(old)[1].removeprefix("agent=")
    file = tmp_path / "conf" / "agent" / "mine.yaml"
    file.parent.mkdir(parents=True)
    setting = old.removeprefix("agent.").replace(".", ": {") + ": 1" + "}" * (old.count(".") - 1)
    file.write_text(f"defaults:\n  - /{agent}_schema@_here_\n  - _self_\n{setting}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as failure:
        compose([agent_with(old)[0], "agent=mine"])
    assert str(failure.value) == f"in agent/mine.yaml: {old} is now {AGENT[old]}"


@pytest.mark.parametrize("old", AGENT)
def test_of_one_group(old: str) -> None:
    typed, new = (key.replace("agent.", "agent.groups.agent.") for key in (old, AGENT[old]))
    with pytest.raises(UserError) as failure:
        compose([*agent_with(old), f"{typed}=1"])
    assert str(failure.value) == f"{typed} is now {new}"


@pytest.mark.parametrize("typed", ["env.vary.length=[0.3,0.7]", "env.vary={length:[0.3,0.7]}", "+env.vary.length=[0.3,0.7]"])
def test_randomized_parameters(typed: str) -> None:
    with pytest.raises(UserError) as failure:
        compose([typed])
    assert str(failure.value) == "env.vary is now env.randomize"


def test_randomized_parameters_in_a_file_of_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "conf" / "env" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("name: mine\nmodule: warprun.envs.cartpole\nvary: {length: [0.3, 0.7]}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as failure:
        compose(["env=mine"])
    assert str(failure.value) == "in env/mine.yaml: env.vary is now env.randomize"


def test_of_a_saved_config() -> None:
    """A run of an earlier version stays readable."""
    config = compose(["agent=dqn", "env.randomize.length=[0.3,0.7]", "agent.learning_starts=7", "agent.groups.agent.utd_ratio=0.5"])
    saved = to_dict(config)
    saved["env"]["vary"] = saved["env"].pop("randomize")
    saved["agent"]["warmup"] = saved["agent"].pop("learning_starts")
    saved["agent"]["groups"] = {"agent": {"gradient_steps": 0.5}}
    saved["agent"]["network"] |= {"name": "mlp", "options": {}}
    del saved["log"]["every"], saved["checkpoint"]["every"]
    saved["log"]["every_s"], saved["checkpoint"]["every_minutes"] = 2.0, 5
    expected = replace(config, log=replace(config.log, every="2s"), checkpoint=replace(config.checkpoint, every="5min"))
    assert from_dict(saved) == expected


def test_only_where_the_agent_has_the_setting() -> None:
    with pytest.raises(UserError, match=r"^unknown key 'agent\.warmup'; agent has name, horizon, learning_rate,"):
        compose(["agent=ppo", "agent.warmup=1"])


def test_an_agent_may_have_a_setting_of_a_former_name(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class OwnConfig(DQNConfig):
        name: str = "own"
        warmup: int = 3

    monkeypatch.setitem(algorithms.AGENTS, "own", algorithms.Shipped(OwnConfig, "not needed"))
    config = OwnConfig(groups={"agent": {"warmup": 7}})
    assert group_config(config, "agent").warmup == 7
    assert from_dict(to_dict(replace(compose([]), agent=config))).agent == config
