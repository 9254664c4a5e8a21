"""Defaults of n_envs that the processes of a run can share, and how often something happens."""

from pathlib import Path

import pytest

from tests.parallel.ranks import start
from warprun.config.cadence import Moment, Recurring, parse
from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.parallel.ddp import check_shares
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


def test_the_share_of_a_batch_is_too_small_if_that_of_a_group_is() -> None:
    settings = "env=cartpole agent=dqn +agent.groups.agent.batch_size=1 concurrency=ddp concurrency.processes=2"
    with pytest.raises(UserError, match=r"share of rank 1 of 2 processes is too small: agent\.groups\.agent\.batch_size=0"):
        check_shares(compose(settings.split()), 2)


@pytest.mark.by_default(0)
def test_a_run_says_so(tmp_path: Path) -> None:
    settings = ["env=pendulum", "agent=ppo", "concurrency=async", "total_steps=10000", "agent.horizon=8", "eval.episodes=2", "device=cpu"]
    done = start(4, *settings, "run_dir=mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "n_envs=255 instead of 256, which the 4 processes of this run cannot share" in done.stdout
    assert "\nn_envs: 255\n" in (tmp_path / "mine/config.yaml").read_text()


# How often something happens ------------------------------------------------------------------------------------------


def due(text: str, passed: list[Moment]) -> list[int]:
    recurring = Recurring(parse("eval.every", text), passed[0])
    return [moment.iterations for moment in passed[1:] if recurring.due(moment)]


@pytest.mark.parametrize(
    ("text", "iterations"),
    [
        ("2 iterations", [2, 4, 6, 8, 10]),
        ("1 iteration", list(range(1, 11))),
        ("250 steps", [3, 5, 8, 10]),
        ("2.5e2steps", [3, 5, 8, 10]),
        ("50 steps", list(range(1, 11))),  # more often than there are iterations
        ("30%", [3, 6, 9]),
        ("3s", [3, 6, 9]),
        ("0.05min", [3, 6, 9]),
        ("never", []),
    ],
)
def test_an_interval(text, iterations):
    assert due(text, [Moment(float(i), 100 * i, i, i / 10) for i in range(11)]) == iterations


def test_steps_count_from_the_start_of_the_run_and_seconds_from_the_last_time():
    assert due("100 steps", [Moment(0, 0, 0, 0), Moment(1, 150, 1, 0), Moment(2, 190, 2, 0), Moment(3, 200, 3, 0)]) == [1, 3]
    assert due("10s", [Moment(5, 0, 0, 0), Moment(14, 0, 1, 0), Moment(19, 0, 2, 0), Moment(27, 0, 3, 0), Moment(29, 0, 4, 0)]) == [2, 4]
    # a tenth of a percent is not lost to rounding
    assert due("0.1%", [Moment(float(i), i, i, i / 1000) for i in range(1001)]) == list(range(1, 1001))


@pytest.mark.parametrize("text", ["10", "0", "", "often", "-5s", "0s", "nan s", "inf steps", "1e400 steps", "5 days", "s", "1.2.3s"])
def test_what_says_not_how_often(text):
    with pytest.raises(UserError, match=r"log\.every=.*: write 10s, 5min") as error:
        parse("log.every", text)
    assert "\n" not in str(error.value)
