"""The plan of a sweep, and what is read of its jobs."""

import io
import json
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from warprun.errors import UserError
from warprun.runs import rundir
from warprun.sweeps import plan, table
from warprun.sweeps.table import Board


def test_a_plan_is_read_as_it_was_written(tmp_path):
    made = plan.planned(tmp_path / "s", [["seed=1", "agent.network.hidden=[64,64]"], ["seed=2", "agent.network.hidden=[64,64]"]])
    plan.claimed(made, tmp_path).release()
    found = plan.read(tmp_path / "s")
    assert found == made
    assert [job.run.name for job in found.jobs] == ["0000_seed-1", "0001_seed-2"]
    assert found.names() == ["seed=1", "seed=2"]
    assert str(found.jobs[1].folder).endswith("jobs/0001")
    assert (
        len(plan.planned(tmp_path / "s", [["agent.network.hidden=[64,64]", f"seed={seed}"] for seed in (1, 2)]).jobs) == 2
    )  # in any order


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (["agent=ppo", "seed=0"], ["agent=a2c", "seed=1"], "0000_ppo_seed-0"),
        (["agent.learning_rate=1e-3", "env.params.force=-2"], [], "0000_learning_rate-1e-3_force--2"),
        (["agent.gamma=0.9", "agent.groups.fast.gamma=1"], [], "0000_agent.gamma-0.9_fast.gamma-1"),
        (["agent.network.hidden=[64,32]", "name='a/b c=Ü'"], [], "0000_hidden-64-32_name-a-b-c"),
        (["tuned=none", "+env.params={a:1,b:2}"], [], "0000_tuned-none_params-a-1-b-2"),
        (["seed=0", "name=" + "y" * 99], [], "0000_seed-0_name-" + "y" * 63),
        ([], ["seed=1"], "0000"),
    ],
)
def test_names_of_run_folders_are_plain_words_of_what_differs(tmp_path, one, other, name):
    found = plan.planned(tmp_path, [one, other]).jobs[0].run.name
    assert found == name and len(found) <= 80


def test_the_newest_sweep_is_found_wherever_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = Path("outputs")
    with pytest.raises(UserError, match="no sweep in outputs/sweeps"):
        plan.latest(root)
    for age, folder in ((30, plan.new_folder(root, "a b")), (20, Path("mine")), (10, tmp_path / "else where" / "ü=1"), (0, Path("gone"))):
        plan.claimed(plan.planned(folder, [["seed=1"]]), root).release()
        os.utime(folder / "plan.json", (1e9 - age, 1e9 - age))
        assert plan.latest(root).samefile(folder)
    shutil.rmtree("gone")
    assert plan.latest(root) == tmp_path / "else where" / "ü=1"
    os.utime("mine/plan.json", (2e9, 2e9))  # a command continues it
    assert plan.latest(root) == tmp_path / "mine"


FOLDERS = ("../../elsewhere", "..", "", ".", "/0000", "a/0000", "jobs", "0001", "00001", "0000\0", 5)
"""No names of run folders within that of the sweep."""
JOBS = [{"format": 1, "search": None, "working_folder": ".", "jobs": [{"overrides": [], "run": run}]} for run in FOLDERS]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "jobs": [{}]}', *map(json.dumps, JOBS)])
def test_a_damaged_plan_is_refused(tmp_path, content):
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(UserError, match="damaged"):
        plan.read(tmp_path)


def test_a_sweep_that_cannot_begin_leaves_nothing(tmp_path, monkeypatch):
    made = plan.planned(tmp_path / "a" / "s", [["seed=1"]])
    monkeypatch.setattr(plan, "write_atomic", lambda path, data: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match="No space left"):
        plan.claimed(made, tmp_path)
    assert not list(tmp_path.iterdir())


def test_states_and_time_left(tmp_path):
    made = plan.planned(tmp_path, [[f"seed={seed}"] for seed in range(4)])
    plan.claimed(made, tmp_path).release()
    for job in made.jobs[:3]:
        job.folder.mkdir(parents=True)
        job.run.mkdir()
    done, going, killed, _ = made.jobs
    rundir.write_status(done.folder, {"state": "solved"})
    rundir.write_status(done.run, {"state": "solved", "env_steps": 100, "wall_s": 8.0, "eval": 475.12345, "eval_stderr": 0.0123})
    held = rundir.Held(going.folder)
    rundir.write_status(going.folder, {"state": "running"})
    rows = [
        {"env_steps": 50, "wall_s": 2.0, "train/progress": 0.25, "train/return": 7.0},
        {"env_steps": 60, "wall_s": 3.0, "eval/return": 9.0},
    ]
    (going.run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"env_st')
    rundir.write_status(killed.folder, {"state": "running"})
    (killed.folder / "lock").touch()
    board = Board.of(made)
    assert [state.state for state in board.states] == ["solved", "running", "killed", "waiting"]
    assert board.states[1].env_steps == 60 and board.states[1].returned == 9.0
    assert table.evaluations(going, None) == [(60, 9.0)]
    assert "475.123 ± 0.012" in board.line(done)
    both = {"train/return": 7.0, "eval/return": 9.0, "eval/return_stderr": 0.5}
    for row, status, shown in (
        (both, {"eval": 8.0, "eval_stderr": 0.8}, (9.0, 0.5)),
        (rows[0], {"eval": 8.0, "eval_stderr": 0.8}, (8.0, 0.8)),
        (rows[0], {}, (7.0, None)),
        ({"train/a/return": 7.0, "eval/a/return": 1.0, "eval/b/return": 2.0}, {"eval": 2.0, "eval_stderr": 0.8}, (2.0, 0.8)),
    ):
        rundir.write_status(going.run, {"state": "running"} | status)
        (going.run / "metrics.jsonl").write_text(json.dumps({"env_steps": 50, "wall_s": 2.0, "train/progress": 0.25} | row) + "\n")
        board.refresh()
        assert (board.states[1].returned, board.states[1].stderr) == shown
    between = [{"env_steps": 40, "wall_s": 1.5} | both, rows[0]]
    (going.run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in between))
    board.refresh()
    assert (board.states[1].env_steps, board.states[1].returned, board.states[1].stderr) == (50, 9.0, 0.5)
    assert board.states[1].left_s == pytest.approx(6.0)
    # 6 s of the running job and 8 s, the mean of what is known, of the waiting one.
    assert board.title() == "1 of 4 jobs finished, 1 running, 1 killed, 1 waiting, about 14 s left"
    held.release()


def test_the_table_of_many_jobs_sums_up_their_returns_and_shows_the_best(tmp_path, monkeypatch):
    made = plan.planned(tmp_path, [[f"seed={seed}"] for seed in range(60)])
    plan.claimed(made, tmp_path).release()
    for job in made.jobs[:50]:
        job.folder.mkdir(parents=True)
        job.run.mkdir()
        state = "failed" if job.number == 20 else "running" if job.number == 30 else "solved" if job.number < 4 else "finished"
        rundir.write_status(job.folder, {"state": state, "error": "why it failed"} if state == "failed" else {"state": state})
        rundir.write_status(job.run, {"state": state, "env_steps": 1000 - job.number, "eval": float(max(job.number, 46))})
    held = rundir.Held(made.jobs[30].folder)
    board = Board.of(made)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(board.table(16))
    text = console.export_text()
    assert "why it failed" in text
    shown = [int(line.split()[1]) for line in text.splitlines() if line.startswith("│")]
    assert shown == [30, 20, 49, 48, 47, 46]  # of those with the return 46, the one that needed the fewest steps
    assert "48 returns: best 49, IQM 46, median 46, middle half 46 to 46; 4 solved" in text and "and 54 more jobs" in text
    read = []
    board.refresh([made.jobs[30]])
    state_of = table.state_of
    monkeypatch.setattr(table, "state_of", lambda job: read.append(job.number) or state_of(job))
    board.refresh([made.jobs[30]])
    board.table(16)
    assert read == [30]  # to draw reads nothing else
    held.release()
