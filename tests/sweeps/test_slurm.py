"""Job arrays: the script that is submitted, and sbatch and squeue by programs that write what they are asked."""

import os
import subprocess
import sys
from importlib.resources import files

import pytest

from warprun.cli import main as cli
from warprun.sweeps import plan, slurm
from warprun.sweeps.launch import SlurmConfig


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


UNSET = """export OLD="$TOOL_PATHS"
"""


def test_setup_may_read_variables_that_are_not_set(cluster, monkeypatch):
    monkeypatch.delenv("TOOL_PATHS", raising=False)
    (cluster / "activate.sh").write_text(UNSET)
    assert (
        cli.run(["-m", "seed=0,1", "sweep_dir=s", "launcher=slurm", f"launcher.setup=['source {cluster}/activate.sh', 'echo ready']"]) == 0
    )
    task = {**os.environ, "SLURM_ARRAY_TASK_ID": "1"}
    script = str(cluster / "work" / "s" / "slurm" / "array.sbatch")
    ran = subprocess.run(["bash", script], env=task, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith("ready\nsrun ")
    (cluster / "activate.sh").write_text("false\n")
    assert subprocess.run(["bash", script], env=task, capture_output=True).returncode == 1


@pytest.mark.parametrize("script", ["train", "actors", "ddp", "sweep"])
def test_activation_may_read_variables_that_are_not_set(script, cluster, monkeypatch):
    monkeypatch.delenv("TOOL_PATHS", raising=False)
    (cluster / "venv" / "bin").mkdir(parents=True)
    (cluster / "venv" / "bin" / "activate").write_text(UNSET + "echo active\n")
    for name in ("warprun", "mpiexec"):
        (cluster / "bin" / name).write_text('#!/bin/bash\necho "run $@"\n')
        (cluster / "bin" / name).chmod(0o755)
    place = files("warprun") / "slurm" / f"{script}.sbatch"
    task = {**os.environ, "WARPRUN_VENV": str(cluster / "venv")}
    task.pop("SLURM_JOB_ID", None)
    ran = subprocess.run(["bash", str(place), "env=cartpole"], env=task, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith("active\nrun ")


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
