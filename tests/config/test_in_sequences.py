"""Defaults of policies with memory off policy: settings that count sequences have their own, unless a person gives a number."""

from pathlib import Path
from typing import Any

import pytest

import warprun
from tests.finished import QUIET
from warprun.algorithms.defaults import IN_SEQUENCES, Size, derive
from warprun.algorithms.settings import DQNConfig
from warprun.cli import main as cli
from warprun.config.compose import compose, note_on_defaults
from warprun.config.schema import Config
from warprun.learning.settings import group_config
from warprun.runs import rundir
from warprun.spec import Box, Discrete, GroupSpec, Spec

LSTM = "agent.network=lstm"


def units(config: Config) -> list[float]:
    return [getattr(config.agent, name) for name in IN_SEQUENCES]


@pytest.mark.by_default(1)
@pytest.mark.parametrize("agent", ["env=cartpole agent=dqn", "env=pendulum agent=ddpg", "env=pendulum agent=td3", "env=pendulum agent=sac"])
def test_a_batch_is_of_sequences_and_updates_are_few(agent: str) -> None:
    """The tuned settings are for networks without memory, so their numbers do not count."""
    assert units(compose([*agent.split(), LSTM])) == [32, 0.0156, 1000, 1, 0.01]
    assert units(compose([*agent.split(), LSTM, "tuned=none"])) == [32, 0.0156, 1024 * 60, 1, 0.01]
    assert abs(0.0156 * 32 * 40 - 20) < 0.1


def test_what_follows_from_numbers_that_a_person_gave() -> None:
    given = ["env=cartpole", "agent=dqn", LSTM, "n_envs=64", "agent.replay.sequence=10", "agent.replay.burn_in=8", "agent.n_step=3"]
    assert units(compose(given)) == [32, 0.0625, 64 * 20, 1, 0.01]
    assert units(compose([*given, "agent.batch_size=64", "agent.learning_starts=5000"])) == [64, 0.0312, 5000, 1, 0.01]
    assert units(compose([*given, "agent.target_update_interval=50"])) == [32, 0.0625, 1280, 50, 0.005]


def test_hydra_prints_the_numbers_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["env=cartpole", "agent=dqn", LSTM, "--cfg", "job"]) == 0
    said = capsys.readouterr().out
    assert "batch_size: 32\n" in said and "utd_ratio: 0.0156\n" in said


def test_settings_without_memory_do_not_follow_from_sequences() -> None:
    compose(["env=cartpole", "agent=dqn", LSTM])
    assert units(compose(["env=cartpole", "agent=dqn", "tuned=none", "n_envs=32"])) == [64, 1.0, 1000, 250, 1.0]
    tuned = compose(["env=cartpole", "agent=dqn"])
    assert units(tuned) == [256, 0.25, 1000, 1, 0.005]
    assert tuned.origin.derived == [] and note_on_defaults(tuned) is None


@pytest.mark.parametrize("network", [[], ["agent.network=gru"]])
def test_tuned_settings_for_memory_count(network: list[str]) -> None:
    config = compose(["env=t_maze", "agent=dqn", *network])
    assert units(config) == [32, 0.0156, 6400, 1, 0.01]
    assert config.origin.derived == []


def test_a_number_in_a_file_counts_also_if_it_is_the_default_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nagent:\n  batch_size: 64\n  utd_ratio: 0.25\n  network:\n    type: lstm\n"
    )
    monkeypatch.chdir(tmp_path)
    assert units(compose(["env=cartpole", "agent=dqn", "experiment=mine"])) == [64, 0.25, 1000, 1, 0.01]


def test_every_group_has_what_its_network_needs() -> None:
    groups: dict[str, Any] = {"a": {"network": {"type": "gru"}, "tau": 0.5}, "b": {"batch_size": 9}}
    spec = Spec(tuple(GroupSpec(name, 1, Box(1), Discrete(2)) for name in ("a", "b")))
    config = derive(DQNConfig(groups=groups), list(IN_SEQUENCES), spec, Size(10, 10, 10**6, True))
    assert [getattr(group_config(config, "a"), name) for name in IN_SEQUENCES] == [32, 0.0156, 1000, 1, 0.5]
    assert [getattr(group_config(config, "b"), name) for name in IN_SEQUENCES] == [9, 1.0, 1000, 250, 1.0]
    other = DQNConfig(groups={"a": {"network": {"type": "mlp"}}})
    other.network.type = "lstm"
    other = derive(other, list(IN_SEQUENCES), spec, Size(10, 10, 10**6, True))
    assert other.batch_size == 32 and group_config(other, "a").batch_size == 64


@pytest.mark.long
def test_the_run_says_them_and_writes_them_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["n_envs=4", "total_steps=1200", "agent.network.hidden=[4]", "agent.network.units=[4]", "agent.replay.sequence=4"]
    folder = tmp_path / "run"
    warprun.train([*QUIET, "env=cartpole", "agent=dqn", LSTM, *small, "agent.replay.burn_in=2", f"run_dir={folder}"])
    said = "agent.batch_size=32 agent.utd_ratio=0.156 agent.learning_starts=1000 agent.target_update_interval=1 agent.tau=0.01"
    assert f"defaults for this run: {said} (docs/defaults.md)" in capsys.readouterr().out
    saved = rundir.read_config(folder)["agent"]
    assert isinstance(saved, dict)
    assert [saved[name] for name in IN_SEQUENCES] == [32, 0.156, 1000, 1, 0.01]
