"""Many runs from one command: what is planned, refused, skipped and repeated, and what its user sees."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.finished import until
from tests.words import words
from warprun.cli import job as jobs
from warprun.cli import main as cli
from warprun.runs import checkpoint, rundir
from warprun.sweeps import plan, table

ROOT = Path(__file__).parents[2]
TINY = words("""
    env=cartpole agent=a2c n_envs=16 device=cpu tuned=none eval.episodes=4 eval.every=20% log.tensorboard=false
    stop_when_solved=false
""")
"""A run of about a second."""


def attempts(folder: Path) -> list[int]:
    return [len(list(job.folder.glob("attempt*"))) for job in plan.read(folder).jobs]


def test_every_combination_is_a_job_and_shows_in_the_table(fake, capsys):
    assert cli.run(["-m", "agent=a2c,ppo", "seed=range(5,8)", "n_envs=1e2", "sweep_dir=s", "launcher.workers=2"]) == 0
    planned = [job.overrides for job in plan.read(fake / "s").jobs]
    assert planned == [(f"agent={agent}", f"seed={seed}", "n_envs=100") for agent in ("a2c", "ppo") for seed in (5, 6, 7)]
    told = capsys.readouterr().out
    assert "6 of 6 jobs finished" in told and "agent=ppo seed=7" in told and "7.00 ± 0.25" in told and "warprun report s" in told
    assert "n_envs" not in told  # the same for all
    assert (fake / "s" / "0005_ppo_seed-7").is_dir()


def test_finished_jobs_are_skipped_failed_ones_repeated_and_new_ones_added(fake, capsys):
    assert cli.run(["-m", "seed=0,1,2,3", "sweep_dir=s"]) == 1
    told = capsys.readouterr()
    assert "warprun: error: seed=1: RuntimeError: the disk is full\n" in told.err
    assert "warprun: error: seed=2: killed by SIGKILL\n" in told.err and "seed=3: its process ended with code 9" in told.err
    assert "3 of 4 jobs failed" in told.err and "1 of 4 jobs finished, 3 failed" in told.out
    assert attempts(fake / "s") == [1, 1, 1, 0]
    assert cli.run(["-m", "seed=0,1,2,3,5", "sweep_dir=s"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:3] for line in lines if ": seed=" in line] == ["2/5", "3/5", "4/5", "5/5"]
    assert attempts(fake / "s") == [1, 2, 2, 0, 1]
    assert cli.run(["-m", "sweep_dir=s"]) == 1
    assert attempts(fake / "s") == [1, 3, 3, 0, 1]
    capsys.readouterr()
    assert cli.run(["status", "s"]) == 1
    assert "2 of 5 jobs finished, 3 failed" in capsys.readouterr().out


def test_files_that_have_changed_since_jobs_began_are_named(fake, capsys):
    assert cli.run(["-m", "seed=0,1,2,3,5", "sweep_dir=s"]) == 1
    old = hashlib.sha256(b"old").hexdigest()

    def copy(place: str, *names: str, **more: object) -> dict[str, object]:
        files = {name: {"file": f"{name}.py", "sha256": old} for name in names}
        return {"entry": names[0], "place": str(fake / place), "files": files, **more}

    more = {"module": "./pump.py", "version": None, "working_folder": str(fake), "options": {}, "time_limit": None, "tables": {}}
    same, a, b = ("net.py", "", "net", "helper"), ("./a/net.py", "a", "net"), ("./b/net.py", "b", "net")
    # Seed 1 has failed, and begins anew; the process of seed 2 was killed, so its run continues; seed 3 was killed in its set-up.
    states = ("finished", "failed", "running", None, "finished")
    for job, state, (setting, *network) in zip(plan.read(Path("s")).jobs, states, (same, same, a, same, b), strict=True):
        for name, about in {"environment": copy("", "pump", "helper", **more), "networks": {setting: copy(*network, folder="0")}}.items():
            (job.run / name).mkdir(parents=True)
            (job.run / name / "manifest.json").write_text(json.dumps(about))
        if state:
            rundir.write_status(job.run, {"state": state, "pid": 1, "host": "elsewhere"})
            (job.run / "config.yaml").touch()
    for name in ("pump.py", "helper.py", "a/net.py", "b/net.py", "net.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("old" if name == "net.py" else "new")
    capsys.readouterr()
    assert cli.run(["-m", "seed=0,1,2,3,5,6", "sweep_dir=s"]) == 1
    changed = [line for line in capsys.readouterr().out.splitlines() if " has changed since " in line]
    assert changed == [
        f"{file} has changed since the start of {jobs}: the old version stays in use there, and other jobs get the new one"
        for file, jobs in {"a/net.py": "1 job", "b/net.py": "1 job", "helper.py": "3 jobs", "pump.py": "3 jobs"}.items()
    ]


def test_another_command_over_the_same_folder_is_refused(fake, capsys, refusal):
    assert cli.run(["-m", "seed=5,6", "sweep_dir=s"]) == 0
    before = {path: path.read_bytes() for path in fake.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert "holds 1 jobs that this command does not have, such as 'seed=5'" in refusal("-m", "seed=6,7", "sweep_dir=s")
    assert {path: path.read_bytes() for path in fake.rglob("*") if path.is_file()} == before
    held = rundir.Held(fake / "s")
    assert "another process" in refusal("-m", "seed=5,6", "sweep_dir=s")
    held.release()


def test_a_sweep_without_a_folder_gets_a_new_one(fake):
    assert cli.run(["train", "seed=6,5", "--multirun", "n_envs=9", "name=mine"]) == 0
    (folder,) = (fake / "outputs" / "sweeps").iterdir()
    assert folder.name.startswith("mine_") and plan.latest(fake / "outputs") == folder
    assert cli.run(["status"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("n_envs=100,2e9", "n_envs=2000000000: n_envs=2000000000 needs "),
        ("seed=0,1 env.params.lenght=1", "seed=0 env.params.lenght=1: env.params.lenght: cartpole has no parameter"),
        ("agent=ppo,pppo", "unknown agent 'pppo'; did you mean 'ppo'?"),
        ("seed=1,2 n_env=3", "unknown key 'n_env'; did you mean 'n_envs'?"),
        ("seed=1,abc", "seed must be a whole number, not 'abc'"),
        ("seed=1,2 run_dir=here", "the runs of a sweep lie in sweep_dir"),
        ("seed=1,2 launcher=locl", "unknown launcher 'locl'; did you mean 'local'?"),
        ("seed=1,2 launcher.worker=2", "unknown key 'launcher.worker'; did you mean 'launcher.workers'?"),
        ("seed=1,2 launcher.workers=0", "launcher.workers=0 must be from 1 to 1,024"),
        ("seed=1,2 launcher.workers=2,3", "has many values"),
        ("seed=1,2 launcher=slurm", "there is no sbatch here"),
        ("seed=1,2 sweep_dir=full", "exists, is not empty, and holds no sweep"),
        ("seed=1,2 concurrency=async", "needs concurrency.processes=N"),
        ("sweep_dir=outputs/nothing", "sweep_dir=outputs/nothing: there is no sweep to continue"),
        ("seed=range(0,20000)", "sweep.yes=true allows it"),
        ("seed=range(0,2000000) sweep.yes=true", "a sweep of 2,000,000 runs is too large (at most 1,000,000)"),
        ("resume=run seed=1,2", "resume= continues one run"),
        ("seed=interval(0,1)", "an interval has no single values"),
        ("seed=range(0,1000000000000)", "(at most 10,000); seed has 1,000,000,000,000 values"),
        ("seed=shuffle(range(0,1e-9,1e-30))", "runs is too large"),
        ("seed=range(1,101) n_envs=range(1,102)", "a sweep of 10,100 runs is too large"),
        ("seed=range(1,2,0)", "a step that is not 0"),
        ("seed=range(1,1)", "has no values"),
        ("agent=glob(x*)", "has no values"),
    ],
)
def test_a_mistake_is_told_before_anything_is_made(fake, refusal, monkeypatch, arguments, message):
    monkeypatch.setenv("PATH", "/nowhere")
    (fake / "full").mkdir()
    (fake / "full" / "file").touch()
    assert message in refusal("-m", *arguments.split())
    assert sorted(str(path.relative_to(fake)) for path in fake.rglob("*")) == ["full", "full/file"]


def test_settings_of_sweeps_need_a_sweep(fake, refusal):
    assert "'sweep_dir=s' is a setting of a sweep: add -m" in refusal("env=cartpole", "sweep_dir=s")
    assert cli.run(["status", "s"]) == 2 and cli.run(["job", "s", "0"]) == 2


@pytest.mark.by_default(0)
def test_an_interrupted_sweep_continues_to_the_same_bits(tmp_path):
    settings = [*TINY, "total_steps=100000", "seed=0,1", "launcher.workers=2"]
    command = [sys.executable, "-m", "warprun", "-m", *settings]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*command, "sweep_dir=s"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    until(lambda: any((tmp_path / "s").glob("*/metrics.jsonl")) or process.poll() is not None, 300)  # compiles kernels
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "warprun -m sweep_dir=s" in told
    done = plan.read(tmp_path / "s").jobs
    assert {table.state_of(job).state for job in done} <= {"interrupted", "finished", "waiting"}
    assert "interrupted" in {table.state_of(job).state for job in done}
    subprocess.run([*command[:4], "sweep_dir=s"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    subprocess.run([*command, "sweep_dir=undisturbed"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    for job in done:
        one, other = checkpoint.load(job.run), checkpoint.load(tmp_path / "undisturbed" / job.run.name)
        assert one.env_steps == other.env_steps and one.tensors.keys() == other.tensors.keys()
        assert all((one.tensors[name] == other.tensors[name]).all() for name in one.tensors if one.tensors[name].numel())


def test_a_job_whose_folder_cannot_be_written_to_is_one_line_and_a_failure(here, capsys, refusal):
    found = plan.planned(here / "s", [[*TINY, "total_steps=2048"]])
    plan.claimed(found, here).release()
    found.jobs[0].log.mkdir(parents=True)  # as on a full disk, its end cannot be written either
    assert refusal("job", "s", "0") == f"warprun: error: cannot write to {found.jobs[0].folder}: Is a directory"
    assert cli.run(["-m", "sweep_dir=s"]) == 1
    assert "1 of 1 jobs did not come to their end; the same command with sweep_dir=s continues them\n" in capsys.readouterr().err


def test_a_job_that_fails_has_its_traceback_and_begins_anew(here, capfd):
    found = plan.planned(here / "s", [[*TINY, "total_steps=2048", "agent.learning_rate=1e30"]])
    plan.claimed(found, here).release()
    (one,) = found.jobs
    assert jobs.train_job("s", 0) == 1
    assert capfd.readouterr().err == ""
    state = table.state_of(one)
    assert state.state == "failed" and "the networks cannot recover" in state.error and state.attempts == 1
    assert "TrainingFailed" in one.traceback.read_text() and "the networks cannot recover" in one.log.read_text()
    started = json.loads((one.run / "status.json").read_text())["started"]
    assert jobs.train_job("s", 0) == 1
    assert json.loads((one.run / "status.json").read_text())["started"] != started
    assert table.state_of(one).attempts == 2
