"""What every launcher has: jobs that are started, waited for, submitted and cancelled. The engine is a queue in pure Python."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.sweeps import fake_jobs
from warprun.cli import main as cli
from warprun.errors import UserError
from warprun.sweeps import launcher as launchers
from warprun.sweeps import plan
from warprun.sweeps.launch import LauncherConfig, compose_launch
from warprun.sweeps.launcher import Launcher, Running
from warprun.sweeps.table import state_of


class Queue(Launcher):
    """An engine that trains the job that waits longest whenever it is asked which are alive; the queue outlasts the object."""

    size: int | None = None
    room = 100
    frozen = False
    loses: Sequence[str] = ()
    """Ids of jobs that vanish."""
    queue: dict[str, plan.Job]
    cancelled: list[str]

    def __init__(self, config: LauncherConfig, found: plan.Plan, trust: bool) -> None:
        self.config, self.plan = config, found

    def submit(self, jobs: Sequence[plan.Job]) -> list[str]:
        taken = list(jobs)[: self.room - len(self.queue)]
        if not taken:
            raise UserError("the queue is full")
        self.queue |= {f"id{job.number}": job for job in taken}
        return [f"id{job.number}" for job in taken]

    def alive(self, ids: Sequence[str]) -> set[str]:
        if self.queue and not self.frozen:
            id, job = next(iter(self.queue.items()))
            if id not in self.loses:
                fake_jobs.train(str(job.folder.parent.parent), job.number)
            del self.queue[id]
        return set(ids) & set(self.queue)

    def cancel(self, ids: Sequence[str], number: int = signal.SIGTERM) -> None:
        self.cancelled += ids
        for id in ids:
            del self.queue[id]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Queue]:
    """The engine that every launcher but `local` is, in an empty working folder."""

    class Own(Queue):
        pass

    Own.queue, Own.cancelled = {}, []
    monkeypatch.setattr(launchers, "made", Own)
    monkeypatch.chdir(tmp_path)
    return Own


def train_next(engine: type[Queue]) -> None:
    """Let the engine go on."""
    engine.alive(engine.__new__(engine), [])


SUBMIT = ["-m", "seed=5,6,7", "sweep_dir=s", "launcher=psij", "launcher.executor=pbs"]


def test_a_command_returns_where_a_queue_takes_all_jobs_and_waits_where_it_does_not(engine, capsys):
    assert cli.run(SUBMIT) == 0
    told = capsys.readouterr().out
    assert told.endswith("submitted 3 jobs (id0 to id2)\n  warprun status s\n  warprun cancel s\n") and len(engine.queue) == 3
    assert json.loads(Path("s/psij/submitted.json").read_text())["jobs"] == {"0": "id0", "1": "id1", "2": "id2"}
    engine.size = 2
    assert cli.run(["-m", "seed=5,6,7", "sweep_dir=t", "launcher=psij"]) == 0
    told = capsys.readouterr().out
    assert "at most 2 jobs at a time" in told and "3 of 3 jobs finished" in told
    assert json.loads(Path("t/psij/submitted.json").read_text())["jobs"] == {}


def test_a_second_command_waits_for_the_end_of_the_first(engine, capsys, refusal):
    engine.frozen = True
    assert cli.run(SUBMIT) == 0
    assert "3 jobs of this sweep are still queued or running; wait for the end, or `warprun cancel s`" in refusal(*SUBMIT)
    engine.size = 2
    assert cli.run(SUBMIT) == 2, "also a command that would wait"
    engine.frozen = False
    while engine.queue:
        train_next(engine)
    assert cli.run(SUBMIT) == 0 and "3 of 3 jobs finished" in capsys.readouterr().out


def test_a_queue_that_is_full(engine, capsys):
    engine.room = 2
    assert cli.run(SUBMIT) == 1
    assert "the queue takes no more: 1 jobs are left for the same command later" in capsys.readouterr().err
    engine.size = 3
    while engine.queue:
        train_next(engine)
    assert cli.run(["-m", "seed=range(5,15)", "sweep_dir=t", "launcher=psij"]) == 0, "a command that waits fills it again and again"
    assert "10 of 10 jobs finished" in capsys.readouterr().out
    engine.room = 0
    assert cli.run(["-m", "seed=5,6", "sweep_dir=u", "launcher=psij"]) == 2
    engine.size = None
    assert cli.run(["-m", "seed=5,6", "sweep_dir=u", "launcher=psij"]) == 2
    assert [line for line in capsys.readouterr().err.splitlines() if "queue is full" not in line] == []
    assert not Path("u").exists()


def test_a_sweep_goes_on_when_the_queue_is_full_of_the_jobs_of_others(tmp_path, engine, monkeypatch):
    monkeypatch.setattr(launchers, "RETRY_S", 0.01)
    found = plan.planned(tmp_path / "s", [["seed=5"], ["seed=6"]])
    plan.claimed(found, tmp_path).release()
    one = engine(compose_launch(["launcher=psij"]).launcher, found, False)
    one.size = 1
    running = Running(one)
    running.start(found.jobs[0])
    one.room = 0
    assert running.ended(0.0) == found.jobs[:1]
    running.start(found.jobs[1])
    assert running.ended(0.0) == [] and running.jobs == found.jobs[1:]
    one.room = 1
    while running.jobs:
        running.ended(0.0)
    assert state_of(found.jobs[1]).state == "finished"


def test_a_job_whose_engine_lost_it_has_failed_and_begins_again(engine, capsys):
    engine.size, engine.loses = 2, ["id1"]
    assert cli.run(["-m", "seed=5,6", "sweep_dir=s", "launcher=psij"]) == 1
    assert "seed=6: its process ended without a word; see s/psij" in capsys.readouterr().err
    engine.loses = ()
    assert cli.run(["-m", "sweep_dir=s", "launcher=psij"]) == 0
    assert [len(list(job.folder.glob("attempt*"))) for job in plan.read(Path("s")).jobs] == [1, 1]


def test_jobs_are_cancelled(engine, capsys):
    engine.frozen = True
    assert cli.run(["cancel", "s"]) == 2
    assert cli.run(SUBMIT) == 0
    del engine.queue["id1"]  # it has ended
    capsys.readouterr()
    assert cli.run(["cancel", "s"]) == 0
    assert capsys.readouterr().out == "cancelled 2 jobs\n" and sorted(engine.cancelled) == ["id0", "id2"]
    assert cli.run(["cancel"]) == 2
    assert "s is queued or running by itself; Ctrl-C ends" in capsys.readouterr().err.splitlines()[-1]
    Path("s/plan.json").write_text(Path("s/plan.json").read_text().replace("seed=5", "seed=4"))
    assert cli.run(["cancel", "s"]) == 2, "a sweep of somebody else"
    assert "is not a sweep of yours" in capsys.readouterr().err


def test_jobs_on_this_machine_are_asked_to_save_a_checkpoint(tmp_path, engine):
    found = plan.planned(tmp_path / "s", [["seed=5"], ["seed=6"]])
    plan.claimed(found, tmp_path).release()
    child = subprocess.Popen([sys.executable, "-c", HOLDS, str(found.jobs[0].folder)], stdout=subprocess.PIPE)
    assert child.stdout.readline()
    one = engine(compose_launch(["launcher=psij"]).launcher, found, False)
    one.queue |= {f"id{job.number}": job for job in found.jobs}
    launchers.end(one, dict(one.queue), signal.SIGUSR1)
    assert child.wait(60) == -signal.SIGUSR1 and one.cancelled == ["id1"]


HOLDS = """
import sys, time, pathlib
from warprun.runs import rundir
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True)
held = rundir.Held(folder)
rundir.write_status(folder, {"state": "running"})
print("held", flush=True)
time.sleep(600)
"""
"""A process that says that it trains a job."""


def test_after_a_signal_no_job_starts_and_those_that_run_are_cancelled(engine, tmp_path):
    found = plan.planned(tmp_path / "s", [[f"seed={n}"] for n in range(5, 9)])
    plan.claimed(found, tmp_path).release()
    one = engine(compose_launch(["launcher=psij"]).launcher, found, False)
    one.size, one.room, one.frozen = 4, 2, True
    running = Running(one)
    for job in found.jobs[:3]:
        running.start(job)
    assert running.jobs == found.jobs[:3], "the third waits for room"
    running.stop(signal.SIGINT, [found.jobs[2]])
    assert running.jobs == found.jobs[:2] and one.cancelled == []
    running.stop(signal.SIGINT)
    assert sorted(one.cancelled) == ["id0", "id1"]
    assert sorted(running.ended(0.0)) == found.jobs[:2] and not running.jobs
    assert [state_of(job).state for job in found.jobs] == ["waiting"] * 4


def test_trials_are_jobs_of_any_launcher_that_waits(engine, capsys, refusal):
    pytest.importorskip("optuna")
    search = ["tune", "seed=int(interval(5,90))", "trials=4", "launcher=submitit"]
    assert "say how many at a time, launcher.workers=N" in refusal(*search, "launcher.executor=slurm", "sweep_dir=s")
    assert not Path("s").exists()
    engine.size = 2
    assert cli.run([*search, "sweep_dir=s"]) == 0
    assert "4 of 4 jobs finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("launcher=psij launcher.cpus=0", "launcher.cpus=0 must be from 1"),
        ("launcher=psij launcher.minutes=0", "launcher.minutes=0 must be from 1"),
        ("launcher=submitit launcher.workers=0", "launcher.workers=0 must be from 1"),
        ("launcher=ray launcher.gpus=-1", "launcher.gpus=-1 must be from 0 to 64"),
        ("launcher=ray launcher.workers=2", "unknown key 'launcher.workers'"),
        ("launcher=submitit launcher.executor=pbs", "launcher.executor=pbs is not one of local, slurm"),
        ("launcher=sumbitit", "did you mean 'submitit'?"),
    ],
)
def test_settings_that_cannot_work(setting, words, tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    assert words in refusal("-m", "seed=0,1", "sweep_dir=s", *setting.split()) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["submitit", "psij", "ray"])
def test_an_engine_that_is_not_installed_is_one_line(name, tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"warprun.sweeps.{name}", raising=False)
    assert f"pip install 'warprun[{name}]'" in refusal("-m", "seed=0,1", "sweep_dir=s", f"launcher={name}")
    assert not list(tmp_path.iterdir())


def test_which_jobs_were_submitted_last(tmp_path):
    assert launchers.submitted(tmp_path) is None
    for age, (name, text) in enumerate({"slurm": '{"job": "17"}', "psij": '{"launcher": {"executor": "pbs"}, "jobs": {"3": "a"}}'}.items()):
        (tmp_path / name).mkdir()
        (tmp_path / name / "submitted.json").write_text(text)
        os.utime(tmp_path / name / "submitted.json", (1e9 + age, 1e9 + age))
        found = launchers.submitted(tmp_path)
        assert found and (found[0].name, found[1]) == [("slurm", {0: "17"}), ("psij", {3: "a"})][age]
    for damaged in ("[]", '{"jobs": 3}', '{"launcher": {"x": 1}, "jobs": {}}'):
        (tmp_path / "psij" / "submitted.json").write_text(damaged)
        assert launchers.submitted(tmp_path) is None


def test_a_process_is_that_of_a_sweep_only_if_it_names_its_folder(tmp_path):
    code = "import time; print('here', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline()  # its command line is known
        ids = [str(child.pid), str(os.getpid()), "999999999"]
        assert launchers.processes(tmp_path, ids) == {str(child.pid)} and not launchers.processes(tmp_path / "x", ids)
    finally:
        child.kill()
        child.wait()
    assert not launchers.processes(tmp_path, ids)
