"""How jobs start: the script of a job array, sbatch and squeue by programs that write what they are asked, and processes here."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.sweeps import fake_jobs
from warprun.cli import main as cli
from warprun.sweeps import local, plan, slurm, table
from warprun.sweeps.launch import SlurmConfig
from warprun.sweeps.local import Pool


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A working folder, and a PATH with an sbatch that numbers jobs, and with no job queued."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    for name, script in {"sbatch": 'echo "$@" >> ../asked; echo "17;cluster"', "squeue": "cat ../queued", "srun": 'echo "srun $@"'}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "queued").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_one_array_is_submitted(cluster, capsys):
    settings = ["-m", "seed=range(0,4)", "sweep_dir=s", "launcher=slurm", "launcher.gres=gpu:1", "launcher.time='1:00:00'"]
    setup = "launcher.setup=['echo set up']"
    assert cli.run([*settings, "launcher.array_limit=2", "launcher.options=['--qos=long']", setup]) == 0
    told = capsys.readouterr().out
    assert "submitted job array 17: 4 tasks" in told and "warprun status s" in told
    script = cluster / "work" / "s" / "slurm" / "array.sbatch"
    assert (cluster / "asked").read_text() == f"--parsable {os.path.join('s', 'slurm', 'array.sbatch')}\n"
    text = script.read_text()
    for line in ("--array=0-3%2", "--gres=gpu:1", "--time=1:00:00", "--signal=USR1@120", "--requeue", "--qos=long", "--cpus-per-task=8"):
        assert f"#SBATCH {line}\n" in text
    assert "--partition" not in text
    task = {**os.environ, "SLURM_ARRAY_TASK_ID": "3", "SLURM_CPUS_PER_TASK": "8"}
    ran = subprocess.run(["bash", str(script)], env=task, capture_output=True, text=True, cwd="/")
    assert ran.stdout == f"set up\nsrun {sys.executable} -m warprun job {cluster / 'work' / 's'} 3 threads=8\n"


def test_only_what_is_not_done_is_submitted_again(cluster, capsys):
    assert cli.run(["-m", "seed=range(0,4)", "sweep_dir=s", "launcher=slurm"]) == 0
    from warprun.runs import rundir

    for number in (0, 2):
        folder = plan.read(cluster / "work" / "s").jobs[number].folder
        folder.mkdir(parents=True)
        rundir.write_status(folder, {"state": "finished"})
    (cluster / "queued").write_text("17_1 R\n")
    assert cli.run(["-m", "sweep_dir=s", "launcher=slurm"]) == 2
    assert "job array 17 of this sweep is still queued or running" in capsys.readouterr().err
    (cluster / "queued").write_text("")
    assert cli.run(["-m", "sweep_dir=s", "launcher=slurm"]) == 0
    assert "#SBATCH --array=1,3\n" in (cluster / "work" / "s" / "slurm" / "array.sbatch").read_text()


def test_a_refusal_of_sbatch_is_one_line_and_leaves_nothing(cluster, capsys):
    (cluster / "bin" / "sbatch").write_text('#!/bin/bash\necho "sbatch: error: invalid partition specified: x" >&2; exit 1\n')
    assert cli.run(["-m", "seed=0,1", "sweep_dir=s", "launcher=slurm", "launcher.partition=x"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "sbatch refuses the job array: sbatch: error: invalid partition specified: x" in line
    assert not (cluster / "work" / "s").exists()


def test_a_launcher_of_your_own(cluster):
    (cluster / "work" / "conf" / "launcher").mkdir(parents=True)
    (cluster / "work" / "conf" / "launcher" / "mine.yaml").write_text(
        "defaults:\n  - /slurm_schema@_here_\n  - _self_\n\naccount: physics\n"
    )
    assert cli.run(["-m", "seed=0,1", "sweep_dir=s", "launcher=mine", "launcher.cpus=3"]) == 0
    text = (cluster / "work" / "s" / "slurm" / "array.sbatch").read_text()
    assert "#SBATCH --account=physics\n" in text and "#SBATCH --cpus-per-task=3\n" in text


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("launcher.time=soon", "launcher.time='soon': write HOURS:MINUTES:SECONDS"),
        ("launcher.cpus=0", "launcher.cpus=0 must be from 1"),
        ("launcher.partition='a b'", "is no name"),
        ("launcher.options=[rm]", "is no option of sbatch"),
    ],
)
def test_settings_that_cannot_work(cluster, capsys, setting, words):
    assert cli.run(["-m", "seed=0,1", "sweep_dir=s", "launcher=slurm", setting]) == 2
    assert words in capsys.readouterr().err
    assert not (cluster / "work" / "s").exists()


@pytest.mark.parametrize(("numbers", "text"), [([0], "0"), ([0, 1, 2, 5], "0-2,5"), ([3, 1], "1,3"), (range(9), "0-8")])
def test_ranges(numbers, text):
    assert slurm.ranges(list(numbers)) == text


def test_folders_with_spaces(tmp_path):
    made = plan.planned(tmp_path / "a b", [["seed=1"]])
    text = slurm.script(made, made.jobs, SlurmConfig())
    assert f'#SBATCH --output="{tmp_path}/a b/slurm/%A_%a.out"' in text and f"'{tmp_path}/a b'" in text


# How workers share cores and GPUs, and what a job looks like that was killed ------------------------------------------


@pytest.mark.parametrize(("cores", "count", "sizes"), [(8, 2, [4, 4]), (8, 3, [2, 3, 3]), (2, 3, [1, 1, 1]), (5, 1, [5])])
def test_cores_are_shared(monkeypatch, cores, count, sizes):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    shares = local.share_cores(count)
    assert sorted(map(len, shares)) == sorted(sizes)
    used = [core for share in shares for core in share]
    assert count > cores or sorted(used) == list(range(cores))


def test_gpus_are_those_that_the_variable_allows(monkeypatch):
    monkeypatch.setattr(local, "why_no_cuda", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert local.usable_gpus() == ["GPU-a", "GPU-b"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local.usable_gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    monkeypatch.setattr(local, "why_no_cuda", lambda: "none")
    assert local.usable_gpus() == []


@pytest.fixture
def made(tmp_path):
    found = plan.planned(tmp_path / "s", [[f"seed={seed}"] for seed in (5, 6, fake_jobs.WAITS, 7)])
    plan.claimed(found, tmp_path).release()
    return found


def until(pool: Pool, count: int) -> list[plan.Job]:
    ended: list[plan.Job] = []
    limit = time.monotonic() + 60
    while len(ended) < count and time.monotonic() < limit:
        ended += pool.ended()
        time.sleep(0.01)
    return ended


def test_gpus_are_dealt_out_in_turn_and_cores_divided(made, monkeypatch):
    monkeypatch.setattr(local, "usable_gpus", lambda: ["0", "1"])
    one = Pool(made.folder, 3, {"auto"}, fake_jobs.train)
    assert "GPUs 0, 1 in turn" in one.describe()
    for job in (made.jobs[0], made.jobs[1], made.jobs[3]):
        one.start(job)
    assert one.is_full
    until(one, 3)
    said = [(made.jobs[n].folder / "attempt1").read_text().rsplit(" ", 1) for n in (0, 1, 3)]
    assert [gpu for _, gpu in said] == ["0", "1", "0"]
    assert [cores for cores, _ in said] == [str(share) for share in local.share_cores(3)]
    assert Pool(made.folder, None, {"auto"}, fake_jobs.train).size == 2
    assert Pool(made.folder, None, {"cpu"}, fake_jobs.train).size == 1


def test_a_job_that_waits_for_ever_is_stopped(made):
    one = Pool(made.folder, 2, {"cpu"}, fake_jobs.train)
    waits = made.jobs[2]
    one.start(waits)
    one.start(made.jobs[0])
    assert until(one, 1) == [made.jobs[0]]
    while not (waits.folder / "attempt1").exists():
        time.sleep(0.01)
    one.stop(signal.SIGTERM)
    assert until(one, 1) == [waits]
    assert table.state_of(waits).state == "failed" and table.state_of(made.jobs[0]).state == "finished"
