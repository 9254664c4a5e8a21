"""A value is converted by the type of the setting that takes it, wherever it is written."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.written import add_environment
from warprun.algorithms import AGENTS
from warprun.config import kinds
from warprun.config.compose import change, compose
from warprun.config.compositions import Compositions
from warprun.config.environments import environment_config
from warprun.config.kinds import kind, whole
from warprun.config.overrides import runs
from warprun.config.schema import Config, to_dict
from warprun.errors import UserError
from warprun.sweeps.launch import SlurmConfig, compose_launch

TANKS = """
from tests.simulation.external.odd import Plain


class environment(Plain):
    def __init__(self, **given):
        pass
"""


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder conf/ with a file of an environment that takes any arguments."""
    for group in ("experiment", "launcher"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    (tmp_path / "tanks.py").write_text(TANKS)
    add_environment(tmp_path, "tanks", "time_limit: 4\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "conf"


VALUES = {
    "n_envs=1e3": ("n_envs", 1000),
    "total_steps=2.5e6": ("total_steps", 2_500_000),
    "seed=7.0": ("seed", 7),
    "agent.horizon=1e1": ("agent.horizon", 10),
    "agent.network.hidden=[1e2,64]": ("agent.network.hidden", [100, 64]),
    "agent.groups.agent.epochs=1e1": ("agent.groups.agent.epochs", 10),
    "eval={episodes:1e1,max_steps:2e3}": ("eval.episodes", 10),
    "agent.gamma=1": ("agent.gamma", 1.0),
    "max_minutes=1e1": ("max_minutes", 10.0),
    "env.kwargs.start=1e1": ("env.kwargs.start", 10.0),
    "env.kwargs.start=10": ("env.kwargs.start", 10),
    "env.kwargs.start=1e20": ("env.kwargs.start", 1e20),
    "env.kwargs.levels=[1e1,2]": ("env.kwargs.levels", [10.0, 2]),
    "env.kwargs={start:1e1}": ("env.kwargs.start", 10.0),
    "env.kwargs.at=12:30:00": ("env.kwargs.at", "12:30:00"),
    "env.kwargs.day=2026-01-02": ("env.kwargs.day", "2026-01-02"),
    "name=1e3": ("name", "1e3"),
    "name=1.10": ("name", "1.10"),
    "name=010": ("name", "010"),
    "name=1_000": ("name", "1_000"),
    "name=true": ("name", "true"),
    "name=null": ("name", None),
    "log.project=2.10": ("log.project", "2.10"),
    "log={project:2.10}": ("log.project", "2.10"),
}


def of(config: Config, key: str) -> tuple[type, object]:
    """Return the type and the value of a setting."""
    found: Any = to_dict(config)
    for name in key.split("."):
        found = found[name]
    return type(found), found


@pytest.mark.parametrize("override", VALUES)
def test_values(conf: Path, override: str) -> None:
    """On the command line, in a file, and of a run that continues."""
    key, wanted = VALUES[override]
    assert of(compose(["env=tanks", override]), key) == (type(wanted), wanted)
    if "{" in override:
        return
    if not override.startswith("env."):
        assert of(change(to_dict(compose(["env=tanks"])), [override]), key) == (type(wanted), wanted)
    value = override.partition("=")[2]
    lines = "".join(f"{'  ' * n}{name}:\n" for n, name in enumerate(key.split(".")))[:-1] + (
        f" '{value}'\n" if ":" in value else f" {value}\n"
    )
    (conf / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{lines}")
    assert of(compose(["env=tanks", "experiment=mine"]), key) == (type(wanted), wanted)


@pytest.mark.parametrize("first, second", [("1e1", "2.5"), ("1.5", "10"), ("10", "1e1"), ("1", "010"), ("7", "true")])
def test_jobs_of_a_sweep_have_what_single_runs_have(conf: Path, first: str, second: str) -> None:
    made, key = Compositions(), "env.kwargs.start"
    for (job,), value in zip(runs([f"{key}={first},{second}"]), (first, second), strict=True):
        assert of(made.compose(["env=tanks", job]), key) == of(compose(["env=tanks", f"{key}={value}"]), key)


def test_whole_numbers_of_sweeps() -> None:
    assert runs(["n_envs=1e2,2e2"]) == [["n_envs=100"], ["n_envs=200"]]
    assert runs(["n_envs=range(1e2,3e2,1e2)"]) == [["n_envs=100"], ["n_envs=200"]]
    assert [Compositions().compose([*job, "name=x"]).name for job in runs(["seed=1e0"])] == ["x"]
    assert [compose(job).name for job in runs(["name=1e3,1.10"])] == ["1e3", "1.10"]
    assert [compose(job).name for job in runs(["name='a,1e3,b'"])] == ["a,1e3,b"]


def test_parameters_have_the_type_of_their_defaults() -> None:
    assert compose(["env.params.length=1e20"]).env.params == {"length": 1e20}
    with pytest.raises(UserError, match=r"length=1e\+39 must be a finite number below 3.4e38"):
        compose(["env.params.length=1e39"])
    assert compose(["env=t_maze", "env.length=1e1"]).env.options == {"length": 10.0}  # the option is a whole number


REFUSED = {
    "at: 12:30:00": "12:30:00 without quotes is 45000 in YAML; write '12:30:00', or 45000",
    "at: 1:30.5": "1:30.5 without quotes is 90.5 in YAML",
    "code: 010": "010 without quotes is 8 in YAML; write '010', or 8",
    "code: 0b11": "0b11 without quotes is 3 in YAML",
    "country: NO": "NO without quotes is false in YAML; write 'NO', or false",
    "mode: on": "on without quotes is true in YAML",
    "days: [mon, 1:30]": "1:30 without quotes is 90 in YAML",
    "on: 1": "on without quotes is true in YAML",
    "at: {12:30:00: 1}": "12:30:00 without quotes is 45000 in YAML",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_yaml_takes_for_a_number_is_refused(conf: Path, line: str) -> None:
    add_environment(conf.parent, "mine", f"kwargs:\n  {line}\n", "./tanks.py")
    with pytest.raises(UserError) as caught:
        environment_config("mine")
    assert str(caught.value).startswith(f"conf/env/mine.yaml:4: {REFUSED[line]}")
    with pytest.raises(UserError, match=r"conf/env/mine\.yaml:4: "):
        compose(["env=mine"])


def test_what_yaml_reads_as_everybody_does(conf: Path) -> None:
    text = "{a: 0x1F, b: -0.5, c: 1_000, d: .inf, e: true, f: 2026-01-02, g: '12:30:00', h: ~, i: 0, j: 08:15 h, k: '010'}"
    add_environment(conf.parent, "mine", f"kwargs: {text}\n", "./tanks.py")
    wanted = (31, -0.5, 1000, float("inf"), True, "2026-01-02", "12:30:00", None, 0, "08:15 h", "010")
    assert (*environment_config("mine").kwargs.values(),) == wanted


def test_texts_and_booleans_in_a_file(conf: Path) -> None:
    (conf / "experiment" / "mine.yaml").write_text(
        "# @package _global_\neval: {greedy: no}\nname: NO\nlog: {live: off, project: 12:30:00}\n"
    )
    config = compose(["experiment=mine"])
    assert (config.eval.greedy, config.name, config.log.live, config.log.project) == (False, "NO", False, "12:30:00")
    (conf / "experiment" / "mine.yaml").write_text("# @package _global_\nn_envs: 010\n")
    with pytest.raises(UserError, match=r"mine\.yaml:2: 010 without quotes is 8"):
        compose(["experiment=mine"])


@pytest.mark.parametrize("time", ["12:00:00", "48:00:00", "90:00", "04:00:00", "1-12:00:00", "60"])
def test_times_of_a_launcher(conf: Path, time: str) -> None:
    lines = f"partition: 010\naccount: 1e3\nmem: 1_000\ntime: {time}\ncpus: 1e1\n"
    (conf / "launcher" / "queue.yaml").write_text(f"defaults:\n  - /slurm_schema@_here_\n  - _self_\n\n{lines}")
    for given in (["launcher=queue"], ["launcher=slurm", *(f"launcher.{line.replace(': ', '=', 1)}" for line in lines.splitlines())]):
        launcher = compose_launch(given).launcher
        assert isinstance(launcher, SlurmConfig)
        assert (launcher.time, launcher.partition, launcher.account, launcher.mem, launcher.cpus) == (time, "010", "1e3", "1_000", 10)


def test_a_value_that_stands_for_two_settings(conf: Path) -> None:
    (conf / "experiment" / "mine.yaml").write_text("# @package _global_\nn_envs: &many 1e2\nmax_minutes: *many\nname: *many\n")
    config = compose(["experiment=mine"])
    assert [of(config, key) for key in ("n_envs", "max_minutes", "name")] == [(int, 100), (float, 100.0), (str, "1e2")]


def test_a_name_has_one_type_in_all_agents() -> None:
    for of_agent in (settings.settings for settings in AGENTS.values()):
        for field in fields(of_agent):
            own = kinds._kind(of_agent, [field.name])
            assert own in (object, kind(f"agent.{field.name}")), field.name


def test_whole() -> None:
    for text, number in {"1e4": 10000, "-2.0": -2, "1_0e1": 100}.items():
        assert whole(text) == number
    assert {whole(text) for text in ("1.5", "1e99", "x", "1e999999999", "_")} == {None}
