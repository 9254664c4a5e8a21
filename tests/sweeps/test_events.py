"""TensorBoard of a sweep: which jobs write event files, and what the one of the sweep says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from warprun.runs import rundir
from warprun.runs.records.tensorboard import PREFIX
from warprun.sweeps import events, plan
from warprun.sweeps.events import Summary
from warprun.sweeps.table import Board


def made(folder: Path, jobs: list[list[str]]) -> plan.Plan:
    found = plan.planned(folder, jobs)
    plan.claimed(found, folder.parent).release()
    return found


def end(job: plan.Job, state: str, returned: float) -> None:
    job.folder.mkdir(parents=True)
    job.run.mkdir()
    rundir.write_status(job.folder, {"state": state})
    rundir.write_status(job.run, {"state": state, "env_steps": 100, "wall_s": 1.0, "eval": returned})


@pytest.mark.parametrize(
    ("count", "more", "expected"),
    [(32, [], []), (33, [], ["log.tensorboard=false"]), (33, ["log.tensorboard=true"], []), (33, ["log.tensorboard=false"], [])],
)
def test_jobs_of_a_large_sweep_write_no_event_files_unless_they_are_told_to(
    tmp_path: Path, count: int, more: list[str], expected: list[str]
) -> None:
    found = plan.planned(tmp_path / "s", [[f"seed={seed}", *more] for seed in range(count)])
    assert events.added(found, found.jobs[0]) == expected
    assert ("tensorboard=true" in events.note(found, waits=True)) == bool(expected)
    assert ("one event file" in events.note(found, waits=False)) is False


def test_the_event_file_of_a_sweep_sums_up_the_jobs_that_have_ended(tmp_path: Path) -> None:
    found = made(tmp_path / "s", [[f"agent={agent}", f"seed={seed}"] for agent in ("a2c", "ppo") for seed in range(4)])
    board = Board.of(found)
    summary = Summary(board)
    for job in found.jobs[:6]:
        end(job, "solved" if job.number == 3 else "finished", float(10 * job.number))
        board.refresh([job])
        summary.add()
    summary.close()
    read = EventAccumulator(str(found.folder)).Reload()
    last = {tag: (read.Scalars(tag)[-1].step, read.Scalars(tag)[-1].value) for tag in read.Tags()["scalars"]}
    assert last["sweep/return_best"] == (6, 50.0) and last["sweep/return_median"] == (6, 25.0)
    assert last["sweep/return_iqm"] == (6, 25.0) and last["sweep/return_lower"] == (6, 12.5)
    assert last["sweep/solved_share"] == (6, pytest.approx(1 / 6))
    assert [value.step for value in read.Scalars("sweep/return_best")] == [1, 2, 3, 4, 5, 6]
    (table,) = read.Tensors("settings")
    rows = table.tensor_proto.string_val[0].decode().splitlines()
    assert rows[2:] == ["| `agent=ppo` | 2 | 45 | 45 | 50 | 0 |", "| `agent=a2c` | 4 | 15 | 15 | 30 | 1 |"]


@pytest.mark.parametrize("case", ["unwanted", "nothing has ended", "cannot be written"])
def test_no_event_file_where_nobody_wants_one_or_there_can_be_none(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["log.tensorboard=false"] if case == "unwanted" else []
    found = made(tmp_path / "s", [["seed=1", *more], ["seed=2", *more]])
    if case != "nothing has ended":
        end(found.jobs[0], "finished", 1.0)
    board = Board.of(found)
    if case == "cannot be written":
        board.plan.folder = tmp_path / "gone"
    summary = Summary(board)
    summary.add()
    summary.add()
    summary.close()
    assert not list(tmp_path.rglob(f"{PREFIX}*"))
    told = "warning: cannot write the event file of the sweep: No such file or directory\n"  # once
    assert capsys.readouterr().err == (told if case == "cannot be written" else "")
