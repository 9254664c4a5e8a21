"""Settings that follow from the run where nobody has given them; those of policies with memory off policy count sequences."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest

import warprun
from tests.finished import QUIET
from warprun.algorithms.defaults import IN_SEQUENCES, Size, derive
from warprun.algorithms.settings import DQNConfig
from warprun.cli import main as cli
from warprun.config.compose import change, note_on_defaults, note_on_tuned
from warprun.config.compositions import Compositions
from warprun.config.schema import as_before, from_dict, to_dict
from warprun.errors import UserError
from warprun.learning.settings.agent import group_config
from warprun.runs import rundir
from warprun.spec import Box, Discrete, GroupSpec, Spec

compose = Compositions().compose
"""The config of Hydra, sooner where only numbers differ from one before."""
UNTUNED = ["env=pendulum", "tuned=none"]
PENDULUM, OF_GYMNASIUM = " ".join(UNTUNED), "env=gymnasium env.id=CartPole-v1 tuned=none"
ROLLOUTS = {
    # rollouts and minibatches have rows within bounds
    f"{PENDULUM} n_envs=1": "horizon=8192 staggered=False minibatches=16 epochs=5 desired_kl=0.01 return_window=3",
    f"{PENDULUM} n_envs=16": "horizon=512 staggered=False minibatches=16 epochs=5 desired_kl=0.01 return_window=3",
    f"{PENDULUM} n_envs=100": "horizon=81 staggered=True minibatches=15 epochs=5 desired_kl=0.01 return_window=3",
    f"{PENDULUM} n_envs=1000": "horizon=64 staggered=True minibatches=64 epochs=5 desired_kl=0.01 return_window=3",
    f"{PENDULUM} n_envs=10000": "horizon=16 staggered=True minibatches=64 epochs=2 desired_kl=0.01 return_window=3",
    f"{PENDULUM} n_envs=100000": "horizon=16 staggered=True minibatches=390 epochs=1 desired_kl=0.01 return_window=3",
    f"{PENDULUM} agent=a2c n_envs=1": "horizon=1024 staggered=False",
    f"{PENDULUM} agent=a2c n_envs=16": "horizon=64 staggered=True",
    f"{PENDULUM} agent=a2c n_envs=1000": "horizon=16 staggered=True",
    # those of steps of Python are fewer, and learned from more often
    f"{OF_GYMNASIUM} n_envs=1": "horizon=4096 minibatches=16 epochs=10",
    f"{OF_GYMNASIUM} n_envs=16": "horizon=256 minibatches=16 epochs=10",
    f"{OF_GYMNASIUM} n_envs=1000": "horizon=8 minibatches=31 epochs=10",
    f"{OF_GYMNASIUM} n_envs=20000": "horizon=8 minibatches=64 epochs=2",
    # a short run has ten updates at least
    f"{PENDULUM} agent=a2c n_envs=1 total_steps=25600": "horizon=100",
    "env=cartpole tuned=none n_envs=1 total_steps=1000": "horizon=100",
    "env=cartpole tuned=none n_envs=8 total_steps=100": "horizon=16",
    # a minibatch of a policy with memory has as many rows
    f"{PENDULUM} agent.network=lstm n_envs=32 agent.horizon=8": "minibatches=4",
    # what one update learns from counts
    f"{PENDULUM} n_envs=1024 agent.horizon=16 concurrency=ddp concurrency.processes=2": "minibatches=16",
    f"{PENDULUM} n_envs=1024 agent.horizon=16 concurrency=rma concurrency.processes=33": "minibatches=4",
    f"{PENDULUM} n_envs=1024 agent.horizon=16 concurrency=sync concurrency.processes=5": "minibatches=32",
}
STAGGERED = {
    # where a rollout is a part of an episode with a time limit that kernels keep, and there are other environments
    f"{PENDULUM} n_envs=1000 agent.horizon=199": "staggered=True",
    f"{PENDULUM} n_envs=1000 agent.horizon=200": "staggered=False",
    f"{PENDULUM} n_envs=1000 env.time_limit=64": "staggered=False",
    f"{PENDULUM} n_envs=1000 agent.staggered=false": "staggered=False",
    f"{OF_GYMNASIUM} n_envs=100": "staggered=False",
}
LIMITS = {"null": 0.99, 200: 0.99, 1000: 0.99, 1009: 0.99, 2000: 0.995, 5000: 0.998, 20_000: 0.999}
"""Time limit -> discount that looks a tenth of it ahead."""
DISCOUNTS = {
    f"{env} agent={agent} env.time_limit={limit}": f"gamma={gamma}"
    for env, agent in ((PENDULUM, "ppo"), (PENDULUM, "a2c"), (OF_GYMNASIUM, "ppo"))
    for limit, gamma in LIMITS.items()
} | {f"{PENDULUM} agent=a2c env.time_limit=5000 agent.gamma=0.9": "gamma=0.9"}
OFF_POLICY = ("env=cartpole agent=dqn", "env=pendulum agent=ddpg", "env=pendulum agent=td3", "env=pendulum agent=sac")
UPDATES = {
    # as many after a step of many environments as of few
    f"{agent} tuned=none {size}": expected
    for agent in OFF_POLICY
    for size, expected in {
        "n_envs=16": "utd_ratio=1.0 learning_starts=1000",
        "n_envs=1000": "utd_ratio=0.032 learning_starts=10000",
        "n_envs=1024 total_steps=1000": "utd_ratio=0.0312 learning_starts=100",
    }.items()
}
LSTM = "agent.network=lstm"
GIVEN = f"env=cartpole agent=dqn {LSTM} n_envs=64 agent.replay.sequence=10 agent.replay.burn_in=8 agent.n_step=3"


def units(*numbers: float) -> str:
    return " ".join(f"{name}={number}" for name, number in zip(IN_SEQUENCES, numbers, strict=True))


SEQUENCES = {
    # tuned settings are for networks without memory, so their numbers do not count, but for those of files for memory
    **{f"{agent} {LSTM}": units(32, 0.0156, 1000, 1, 0.01) for agent in OFF_POLICY},
    **{f"{agent} {LSTM} tuned=none": units(32, 0.0156, 1024 * 60, 1, 0.01) for agent in OFF_POLICY},
    "env=t_maze agent=dqn": units(32, 0.0156, 6400, 1, 0.01),
    "env=t_maze agent=dqn agent.network=gru": units(32, 0.0156, 6400, 1, 0.01),
    # numbers that a person gave
    GIVEN: units(32, 0.0625, 64 * 20, 1, 0.01),
    f"{GIVEN} agent.batch_size=64 agent.learning_starts=5000": units(64, 0.0312, 5000, 1, 0.01),
    f"{GIVEN} agent.target_update_interval=50": units(32, 0.0625, 1280, 50, 0.005),
    "env=cartpole agent=dqn experiment=sequences": units(64, 0.25, 1000, 1, 0.01),
    # without memory
    "env=cartpole agent=dqn tuned=none n_envs=32": units(64, 1.0, 1000, 250, 1.0),
    "env=cartpole agent=dqn": units(256, 0.25, 1000, 1, 0.005),
}
DECIDED = ["agent.learning_rate=3e-4", "agent.learning_rate_end=0", "agent.target_kl=0.015", "agent.epochs=1 agent.minibatches=1"]
RATES = {
    # one that somebody decides does not follow the policy; one that does has a limit unless settings are tuned
    **{f"{PENDULUM} {given}": "desired_kl=None" for given in DECIDED},
    PENDULUM: "learning_rate_max=0.001",
    f"{PENDULUM} agent.learning_rate=3e-4": "desired_kl=None learning_rate_max=0.01",
    # numbers that are given or tuned stay, and others follow from them
    f"{PENDULUM} n_envs=16 agent.horizon=16": "horizon=16 staggered=True minibatches=4",
    "env=acrobot": "learning_rate_max=0.01",
    "env=cartpole": "horizon=16 staggered=False minibatches=16 epochs=1 desired_kl=None return_window=None",
    "experiment=tag_plane": "desired_kl=None return_window=None",
}


@pytest.mark.parametrize("rules", [ROLLOUTS, STAGGERED, DISCOUNTS, UPDATES, SEQUENCES, RATES])
def test_what_follows_from_a_run(rules: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    text = "# @package _global_\nagent:\n  batch_size: 64\n  utd_ratio: 0.25\n  network:\n    type: lstm\n"
    (tmp_path / "conf" / "experiment" / "sequences.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    for given, expected in rules.items():
        agent = compose(given.split()).agent
        names = [word.partition("=")[0] for word in expected.split()]
        assert " ".join(f"{name}={getattr(agent, name)}" for name in names) == expected, given


ENDLESS = """from dataclasses import replace
from warprun.envs import pendulum
environment = replace(pendulum.environment(), time_limit=None)
"""
NOT_STAGGERED = {OF_GYMNASIUM: "kernel functions", "env=pendulum env.module=./endless.py": "no time limit"}


@pytest.mark.parametrize(("env", "why"), NOT_STAGGERED.items())
def test_only_a_time_limit_that_kernels_keep_can_be_staggered(env: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "endless.py").write_text(ENDLESS)
    with pytest.raises(UserError, match=rf"agent\.staggered=true: .*{why}"):
        compose([*env.split(), "agent.staggered=true"])


@pytest.mark.parametrize("given", DECIDED)
def test_a_rate_cannot_be_decided_and_follow_the_policy(given: str) -> None:
    with pytest.raises(UserError, match=r"agent\.desired_kl=0\.01"):
        compose([*UNTUNED, *given.split(), "agent.desired_kl=0.01", *([] if "target" in given else ["agent.target_kl=0.001"])])


def test_actors_count_as_environments_and_groups_have_their_own() -> None:
    agent = compose(["env=tag_continuous", "tuned=none", "n_envs=4"]).agent  # 5 and 100 actors
    assert agent.horizon > 64
    assert agent.groups and all("minibatches" in own and not {"horizon", "staggered"} & own.keys() for own in agent.groups.values())


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


@pytest.mark.parametrize(
    ("given", "shown"),
    [(f"{PENDULUM} agent.learning_rate_end=0", ["desired_kl: null"]), (f"agent=dqn {LSTM}", ["batch_size: 32\n", "utd_ratio: 0.0156\n"])],
)
def test_what_is_printed_can_be_given(given: str, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*given.split(), "--cfg", "job"]) == 0
    said = capsys.readouterr().out
    assert all(line in said for line in shown)


# A run that continues --------------------------------------------------------------------------------------------------


def test_a_run_that_continues_keeps_what_nobody_gives_now() -> None:
    before = compose([*UNTUNED, "n_envs=16", "agent.epochs=3"])
    same, changed = (as_before(compose([*UNTUNED, "n_envs=1", *more]), before).agent for more in ([], ["agent.entropy_coef=0.5"]))
    assert (same.horizon, same.epochs, same.minibatches) == (512, 3, 16)
    assert (changed.horizon, changed.minibatches, changed.entropy_coef) == (512, 16, 0.5)
    network = compose(["env=cartpole", "agent.network.hidden=[64,64]"])  # earlier versions stored these of the default
    assert as_before(compose(["env=cartpole"]), network).agent.network.hidden == [64, 64]
    assert as_before(compose(["env=cartpole", "agent.network.hidden=[32]"]), network).agent.network.hidden == [32]


def test_a_run_of_an_earlier_version_continues() -> None:
    saved = to_dict(compose([*UNTUNED, "n_envs=16", "agent.entropy_coef=0.25"]))
    assert as_before(compose(UNTUNED), from_dict(saved | {"origin": {}})).agent.horizon == 512  # without rules
    saved["origin"]["derived"].append("agent.entropy_coef=0.25")  # which has no rule any more
    del saved["agent"]["learning_rate_max"]
    kept = as_before(compose(UNTUNED), from_dict(saved)).agent
    assert (kept.entropy_coef, kept.learning_rate_max) == (0.25, 1e-2)
    assert as_before(compose([*UNTUNED, "agent.entropy_coef=0.5"]), from_dict(saved)).agent.entropy_coef == 0.5


def test_a_run_that_continues_keeps_how_its_episodes_began() -> None:
    saved = to_dict(compose([*UNTUNED, "n_envs=1000"]))
    assert change(saved, ["agent.staggered=true"]).staggered
    with pytest.raises(UserError, match=r"agent\.staggered=false: a run that continues keeps it"):
        change(saved, ["agent.staggered=false"])


# The line that names them ----------------------------------------------------------------------------------------------


def test_the_line_names_every_number_and_none_that_was_given() -> None:
    said = note_on_defaults(compose([*UNTUNED, "n_envs=16"]))
    numbers = "agent.gamma=0.99 agent.horizon=512 agent.staggered=false agent.minibatches=16 agent.epochs=5"
    assert said and said.startswith(f"defaults for this run: {numbers}")
    for tuned in ("env=acrobot", "env=cartpole agent=dqn", "env=t_maze agent=dqn"):
        config = compose(tuned.split())
        assert config.origin.derived == [] and note_on_defaults(config) is None and note_on_tuned(config)
    said = note_on_defaults(change(to_dict(compose(["env=cartpole", "tuned=none", "n_envs=64"])), ["agent.horizon=8"]))
    assert said and "horizon" not in said and "agent.gamma=" in said


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


def test_hydra_composes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    composes = hydra.compose
    monkeypatch.setattr(hydra, "compose", lambda name, overrides, **more: calls.append(overrides) or composes(name, overrides, **more))
    assert Compositions().compose(["env=acrobot", "tuned=none"]).origin.derived
    assert len(calls) == 1


def test_a_setting_that_follows_and_is_left_open_is_refused(refusal: Callable[..., str]) -> None:
    assert "agent.horizon" in refusal("env=acrobot", "tuned=none", "agent.horizon=???")


def test_a_reference_to_what_nobody_gives_is_not_given() -> None:
    config = compose(["env=acrobot", "tuned=none", "agent.minibatches=${agent.epochs}"])
    assert config.agent.minibatches == 4 and "agent.minibatches=4" not in config.origin.derived
