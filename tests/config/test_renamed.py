"""A key that has another name now is refused with that name, wherever it stands."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from warprun import algorithms
from warprun.algorithms.settings import DQNConfig
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


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as failure:
        compose(overrides)
    return str(failure.value)


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """./conf with the folders of agents and environments."""
    monkeypatch.chdir(tmp_path)
    for group in ("agent", "env"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    return tmp_path / "conf"


@pytest.mark.parametrize("old", AGENT)
def test_a_setting_of_an_agent(old: str, conf: Path) -> None:
    """As it is typed, of one group, and in a file."""
    env, agent = agent_with(old)
    assert refusal(env, agent, f"{old}=1") == f"{old} is now {AGENT[old]}"
    of_group, new = (key.replace("agent.", "agent.groups.agent.") for key in (old, AGENT[old]))
    assert refusal(env, agent, f"{of_group}=1") == f"{of_group} is now {new}"
    setting = old.removeprefix("agent.").replace(".", ": {") + ": 1" + "}" * (old.count(".") - 1)
    schema = f"/{agent.removeprefix('agent=')}_schema@_here_"
    (conf / "agent" / "mine.yaml").write_text(f"defaults:\n  - {schema}\n  - _self_\n{setting}\n")
    assert refusal(env, "agent=mine") == f"in agent/mine.yaml: {old} is now {AGENT[old]}"


def test_randomized_parameters(conf: Path) -> None:
    for typed in ("env.vary.length=[0.3,0.7]", "env.vary={length:[0.3,0.7]}", "+env.vary.length=[0.3,0.7]"):
        assert refusal(typed) == "env.vary is now env.randomize"
    (conf / "env" / "mine.yaml").write_text("name: mine\nmodule: warprun.envs.cartpole\nvary: {length: [0.3, 0.7]}\n")
    assert refusal("env=mine") == "in env/mine.yaml: env.vary is now env.randomize"


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
    assert refusal("agent=ppo", "agent.warmup=1").startswith("unknown key 'agent.warmup'; agent has name, horizon, staggered, ")


def test_an_agent_may_have_a_setting_of_a_former_name(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class OwnConfig(DQNConfig):
        name: str = "own"
        warmup: int = 3

    monkeypatch.setitem(algorithms.AGENTS, "own", algorithms.Shipped(OwnConfig, "not needed"))
    config = OwnConfig(groups={"agent": {"warmup": 7}})
    assert group_config(config, "agent").warmup == 7
    assert from_dict(to_dict(replace(compose([]), agent=config))).agent == config
