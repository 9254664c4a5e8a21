"""Defaults of n_envs are numbers that the processes of a run can share."""

from pathlib import Path

import pytest

from tests.parallel.ranks import start
from warprun.cli import main as cli
from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.parallel.launch import layout


@pytest.mark.parametrize(
    ("settings", "processes", "n_envs"),
    [
        ("concurrency=async", 4, 1023),
        ("concurrency=sync concurrency.learners=2", 8, 1026),
        ("concurrency=rma env=pendulum", 4, 255),  # tuned: 256
        ("concurrency=seed agent=dqn", 4, 15),  # tuned: 16
        ("concurrency=ddp env=pendulum agent=sac", 3, 3),  # tuned: 1
        ("concurrency=ddp", 3, 1024),  # the shares need not be equal
    ],
)
def test_numbers_that_nobody_gives_are_shared(settings: str, processes: int, n_envs: int) -> None:
    config = compose([*settings.split(), f"concurrency.processes={processes}"])
    assert config.n_envs == n_envs
    assert (config.origin.n_envs is None) == (n_envs == 1024)


def test_a_number_that_a_person_gives_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conf/experiment").mkdir(parents=True)
    Path("conf/experiment/mine.yaml").write_text("# @package _global_\nn_envs: 1024\n")
    for given in ("n_envs=1024", "experiment=mine"):
        config = compose([given, "tuned=none", "concurrency=async", "concurrency.processes=4"])
        assert config.n_envs == 1024 and config.origin.n_envs is None
        with pytest.raises(UserError, match="n_envs=1024 cannot be shared out evenly to 3 actors; n_envs=1023 can"):
            layout(config, 4)


def test_the_config_that_is_shown_has_the_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["env=pendulum", "concurrency=async", "concurrency.processes=4", "--cfg", "job"]) == 0
    assert "\nn_envs: 255\n" in capsys.readouterr().out


@pytest.mark.by_default(0)
def test_a_run_says_so(tmp_path: Path) -> None:
    settings = ["env=pendulum", "agent=ppo", "concurrency=async", "total_steps=10000", "agent.horizon=8", "eval.episodes=2", "device=cpu"]
    done = start(4, *settings, "run_dir=mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "n_envs=255 instead of 256, which the 4 processes of this run cannot share" in done.stdout
    assert "\nn_envs: 255\n" in (tmp_path / "mine/config.yaml").read_text()
