"""Which runs are read and left out, how they are sorted into settings, and the numbers of the table."""

import errno
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.report.made import made
from warprun.report import table
from warprun.report.compare import Comparison, compare, on_grid
from warprun.report.runs import Curve, collect, run_folders
from warprun.report.statistics import Interval


def compared(root: Path, by: list[str] | None = None, threshold: float | None = None) -> Comparison:
    return compare(collect([root], False)[0], by, threshold, None)


def test_seeds_are_averaged_and_what_differs_is_compared(tmp_path: Path) -> None:
    for n_envs in (100, 8):
        for seed in range(3):
            made(tmp_path / f"{n_envs}_{seed}", [10.0 * seed, 20.0], settings={"n_envs": n_envs, "seed": seed})
    found = compared(tmp_path)
    assert found.by == ("n_envs",) and [setting.values for setting in found.settings] == [(8,), (100,)]
    assert [len(setting.runs) for setting in found.settings] == [3, 3]
    assert found.label((100,)) == "n_envs=100"


def test_settings_of_another_agent_follow_from_it(tmp_path: Path) -> None:
    made(tmp_path / "a", [1.0], settings={"agent.name": "ppo"})
    made(tmp_path / "b", [1.0], settings={"agent": {"name": "a2c", "learning_rate": 0.5}})
    assert compared(tmp_path).by == ("agent",)
    made(tmp_path / "c", [1.0], settings={"agent": {"name": "a2c", "learning_rate": 0.25}})
    assert compared(tmp_path).by == ("agent", "agent.learning_rate")
    chosen = compared(tmp_path, ["agent"])
    assert chosen.averaged == ("agent.learning_rate",) and [len(setting.runs) for setting in chosen.settings] == [2, 1]


def test_environments_are_kept_apart_even_if_they_are_not_compared(tmp_path: Path) -> None:
    made(tmp_path / "a", [1.0])
    made(tmp_path / "b", [1.0], settings={"env": {"name": "gymnasium", "id": "Ant-v5"}})
    found = compared(tmp_path, ["env"])
    assert found.envs == ["Ant-v5", "cartpole"] and found.by == ("agent",)


def test_steps_and_time_of_training_to_a_threshold(tmp_path: Path) -> None:
    """A run that does not reach it takes longer than any; the median of two is between them."""
    for name, returns, began_s in (("a", [10.0, 475.0, 480.0], 0.0), ("b", [10.0, 20.0, 500.0], 30.0), ("c", [10.0, 20.0, 30.0], 0.0)):
        made(tmp_path / name, returns, settings={"seed": name}, began_s=began_s)
    comparison = compared(tmp_path)
    (line,) = table.lines(comparison)
    assert line.reached is not None and line.reached.threshold == 475.0 and line.throughput.value == 1000.0
    assert (line.reached.runs, line.reached.env_steps.value, line.reached.seconds.value) == (2, 3000.0, 3.0)
    (row,) = table.rows(comparison, [line])
    assert dict(zip(table.headings(comparison, [line]), row, strict=True))["s of training to 475, median"].startswith("3")
    (line,) = table.lines(compared(tmp_path, threshold=490.0))
    assert line.reached is not None and line.reached.runs == 1 and math.isinf(line.reached.seconds.value)
    for place, every in (("one", 25_600), ("two", 100_000)):
        made(tmp_path / "others" / place, [1.0, 475.0], settings={"seed": place}, every=every)
    comparison = compared(tmp_path / "others")
    (line,) = table.lines(comparison)
    assert line.reached is not None and (line.reached.env_steps.value, line.reached.seconds.value) == (125_600.0, 125.6)
    (row,) = table.rows(comparison, [line])
    assert dict(zip(table.headings(comparison, [line]), row, strict=True))["env_steps to 475, median"].startswith("126 k ")


def test_a_time_that_cannot_be_told_from_compilation_is_not_known(tmp_path: Path) -> None:
    """Compilation is part of the first record, so of a run with no other nothing is known of the time of training."""
    made(tmp_path / "a", [480.0], began_s=30.0)
    comparison = compared(tmp_path)
    (line,) = table.lines(comparison)
    assert line.reached is not None and line.reached.env_steps.value == 1000.0 and math.isnan(line.reached.seconds.value)
    (row,) = table.rows(comparison, [line])
    assert row[-2:] == ["–", "–"]
    table.write_runs(tmp_path / "runs.csv", comparison)
    assert (tmp_path / "runs.csv").read_text().splitlines()[1].endswith(",475.0,1000.0,")


def test_the_numbers_of_a_line(tmp_path: Path) -> None:
    for seed, last in enumerate([1.0, 2.0, 3.0, 10.0]):
        made(tmp_path / str(seed), [50.0, last], settings={"seed": seed})
    (line,) = table.lines(compared(tmp_path))
    assert {name: each.value for name, each in line.final.items()} == {"median": 2.5, "mean": 4.0, "IQM": 2.5}
    assert line.best.value == 50.0 and line.throughput.value == 1000.0


def test_runs_are_found_in_folders_of_folders_once(tmp_path: Path) -> None:
    run = made(tmp_path / "sweep" / "jobs" / "1", [1.0])
    (run / "checkpoints" / "config.yaml").parent.mkdir()
    (run / "checkpoints" / "config.yaml").touch()  # not a run: it lies in one
    for name in ("plan.json", "lock", "jobs/0000/lock", "jobs/0000/status.json"):  # of the sweep and of a job, beside its run
        (tmp_path / "sweep" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sweep" / name).touch()
    runs, left_out = collect([tmp_path, tmp_path / "sweep", run], False)
    assert [each.folder for each in runs] == [run] and left_out == []


def test_runs_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    made(tmp_path / "good", [1.0, 2.0])
    with open(tmp_path / "good" / "metrics.jsonl", "a") as file:
        file.write('{"env_steps": 3000, "wall_')  # torn
    (tmp_path / "setting_up").mkdir()
    (tmp_path / "setting_up" / "lock").touch()
    made(tmp_path / "failed", [1.0], state="failed")
    made(tmp_path / "empty", [])
    (made(tmp_path / "silent", [1.0]) / "metrics.jsonl").unlink()
    (made(tmp_path / "torn", [1.0]) / "config.yaml").write_text("env: [")
    (made(tmp_path / "no_status", [1.0]) / "status.json").write_text("{")
    (run,), left_out = collect([tmp_path], False)
    assert run.folder.name == "good" and run.evaluations.value.tolist() == [1.0, 2.0]
    words = {
        "setting_up": "its set-up did not end",
        "failed": "unfinished=true includes it",
        "empty": "without a record of a return",
        "silent": "without metrics.jsonl",
        "torn": "cannot read",
        "no_status": "without a status.json",
    }
    reasons = {each.folder.name: each.why for each in left_out}
    assert reasons.keys() == words.keys() and all(words[name] in why and "\n" not in why for name, why in reasons.items())
    assert {run.folder.name for run in collect([tmp_path], True)[0]} == {"good", "failed", "no_status"}


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, closed = made(tmp_path / "good", [1.0]), made(tmp_path / "closed", [1.0])
    scan = os.scandir

    def refused(place: Path) -> Iterator[os.DirEntry[str]]:
        if Path(place) == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", refused)
    assert list(run_folders(tmp_path)) == [good, closed]


def test_groups_are_compared_by_the_one_that_decides(tmp_path: Path) -> None:
    for name, group, expected in (("a", None, 1.0), ("b", "planner", 7.0)):
        run = made(tmp_path / name, [1.0], settings={"eval.group": group})
        text = (run / "metrics.jsonl").read_text()
        text = text.replace('"eval/return": 1.0', '"eval/governors/return": 1.0, "eval/planner/return": 7.0')
        (run / "metrics.jsonl").write_text(text.replace('"train/return"', '"train/governors/return"'))
        assert collect([run], False)[0][0].evaluations.value.tolist() == [expected]


def test_curves_meet_on_a_grid() -> None:
    one = Curve(np.array([0.0, 10.0]), np.array([0.0, 1.0]), np.array([0.0, 100.0]))
    ended = Curve(np.array([2.0, 4.0]), np.array([0.5, 0.6]), np.array([20.0, 40.0]))
    grid, values = on_grid([one, ended], "env_steps", points=5)
    assert grid.tolist() == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert values.tolist() == [[20.0, 40.0, 60.0, 80.0, 100.0], [20.0, 40.0, 40.0, 40.0, 40.0]]
    assert on_grid([one], "env_steps", log=True)[0][0] == 0.0  # which has no logarithm


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        (157.52, 134.06, 182.94, "158 [134, 183]"),
        (499.993, 499.98, 500.0, "499.993 [499.980, 500.000]"),
        (12.34, 10.0, 14.0, "12.3 [10.0, 14.0]"),
        (-0.0001, -5.0, 5.0, "0 [-5, 5]"),
        (2e-5, 1.5e-5, 2.5e-5, "0.000020 [0.000015, 0.000025]"),
        (499.98, 499.98 - 1e-13, 499.98 + 1e-13, "500 [500, 500]"),
        (134.1234, math.nan, math.nan, "134.1"),
        (15234.4, math.nan, math.nan, "15,234"),
        (5.0, 4.0, math.inf, "5 [4, ∞]"),
        (math.inf, 4.0, math.inf, "–"),
    ],
)
def test_numbers_have_the_digits_that_their_intervals_support(value: float, low: float, high: float, shown: str) -> None:
    assert table.cell(Interval(value, low, high)) == shown
    assert table.cell(Interval(1.23e6, 0.41e6, 3.1e6), 1e6, " M") == "1.2 M [0.4 M, 3.1 M]"
