"""Job arrays: the script that is submitted, and sbatch and squeue by programs that write what they are asked."""

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from tests.written import add_programs
from warprun.cli import main as cli
from warprun.runs import rundir
from warprun.sweeps import plan, slurm
from warprun.sweeps.launch import SlurmConfig

SCRIPTS = Path(str(files("warprun"))) / "slurm"
PROGRAMS = {
    "sbatch": 'echo "$@" >> ../asked; echo "17;cluster"',
    "squeue": "cat ../queued",
    "scancel": 'echo "$@" > ../cancelled',
    "srun": 'echo "srun $@"',
    "warprun": 'echo "$@"',
    "mpiexec": 'echo -n "mpiexec $1 $2 "; shift 2; "$@"',
}
"""Programs that say what they were asked. sbatch numbers jobs, and no job is queued."""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder with a working folder and such programs, which are on the PATH."""
    (tmp_path / "work").mkdir()
    add_programs(tmp_path / "bin", PROGRAMS)
    (tmp_path / "queued").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def called(script: Path, *given: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a batch script as SLURM would, or by hand."""
    task = {name: value for name, value in os.environ.items() if not name.startswith("SLURM") and name != "TOOL_PATHS"} | variables
    return subprocess.run(["bash", str(script), *given], env=task, capture_output=True, text=True)


def test_one_array_is_submitted(cluster, capsys, monkeypatch):
    settings = ["-m", "seed=range(0,4)", "sweep_dir=s", "launcher=slurm", "launcher.gres=gpu:1", "launcher.time='1:00:00'"]
    setup = "launcher.setup=['echo set up']"
    assert cli.run([*settings, "launcher.array_limit=2", "launcher.options=['--qos=long']", setup]) == 0
    told = capsys.readouterr().out
    assert "submitted 4 jobs (17_0 to 17_3)" in told and "warprun status s" in told
    script = cluster / "work" / "s" / "slurm" / "array.sbatch"
    assert (cluster / "asked").read_text() == f"--parsable {os.path.join('s', 'slurm', 'array.sbatch')}\n"
    text = script.read_text()
    for line in ("--array=0-3%2", "--gres=gpu:1", "--time=1:00:00", "--signal=USR1@120", "--requeue", "--qos=long", "--cpus-per-task=8"):
        assert f"#SBATCH {line}\n" in text
    assert "--partition" not in text
    monkeypatch.chdir("/")
    ran = called(script, SLURM_ARRAY_TASK_ID="3", SLURM_CPUS_PER_TASK="8")
    assert ran.stdout == f"set up\nsrun {sys.executable} -m warprun job {cluster / 'work' / 's'} 3 threads=8\n"


UNSET = 'export OLD="$TOOL_PATHS"\necho active\n'
"""What an activation script may read: a variable that is not set."""


def test_setup_may_read_variables_that_are_not_set(cluster):
    (cluster / "activate.sh").write_text(UNSET)
    assert cli.run(["-m", "seed=0,1", "sweep_dir=s", "launcher=slurm", f"launcher.setup=['source {cluster}/activate.sh']"]) == 0
    script = cluster / "work" / "s" / "slurm" / "array.sbatch"
    ran = called(script, SLURM_ARRAY_TASK_ID="1")
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith("active\nsrun ")
    (cluster / "activate.sh").write_text("false\n")
    assert called(script, SLURM_ARRAY_TASK_ID="1").returncode == 1


@pytest.mark.parametrize("script", ["train", "actors", "ddp", "sweep"])
def test_activation_may_read_variables_that_are_not_set(script, cluster):
    (cluster / "venv" / "bin").mkdir(parents=True)
    (cluster / "venv" / "bin" / "activate").write_text(UNSET)
    ran = called(SCRIPTS / f"{script}.sbatch", "env=cartpole", WARPRUN_VENV=str(cluster / "venv"))
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith(("active\ntrain ", "active\nmpiexec "))


JOB = {"SLURM_JOB_ID": "7"}
COPIED = JOB | {"SLURM_SUBMIT_DIR": str(SCRIPTS.parent)}
TRAIN = "srun --kill-on-bad-exit=1 warprun train"
CALLS = [
    ("train env=pendulum seed=3", {}, "train env=pendulum seed=3"),
    ("train seed=3", JOB | {"SLURM_CPUS_PER_TASK": "8"}, f"{TRAIN} concurrency.threads=8 resume=auto run_dir=outputs/slurm-7 seed=3"),
    ("train run_dir=a", JOB, f"{TRAIN} concurrency.threads=1 resume=auto run_dir=a"),
    (
        "train",
        JOB | {"WARPRUN_CONTAINER": "w.sif", "APPTAINER_OPTIONS": "--nv"},
        "srun --kill-on-bad-exit=1 apptainer exec --nv w.sif warprun train concurrency.threads=1 resume=auto run_dir=outputs/slurm-7",
    ),
    ("ddp seed=3", {}, "train concurrency=ddp seed=3"),
    ("ddp", COPIED, f"{TRAIN} concurrency.threads=1 resume=auto run_dir=outputs/slurm-7 concurrency=ddp"),
    ("actors concurrency=rma", {}, "mpiexec -n 4 train concurrency=rma"),
    (
        "actors concurrency=rma",
        JOB | {"SLURM_CPUS_PER_TASK": "2", "SLURM_HET_SIZE": "2", "SRUN_MPI": "pmix"},
        "srun --kill-on-bad-exit=1 --mpi=pmix --het-group=0-1 warprun train concurrency.threads=2 concurrency=rma",
    ),
    ("sweep env=pendulum", {"SLURM_ARRAY_TASK_ID": "4"}, "train env=pendulum seed=4"),
    ("sweep runs.txt n_envs=9", {}, "train n_envs=9 agent=a2c agent.gamma=0.9"),
    ("sweep runs.txt", {"SLURM_ARRAY_TASK_ID": "2"}, "train agent=ppo"),
    (
        "sweep runs.txt",
        COPIED | {"SLURM_ARRAY_TASK_ID": "2", "SLURM_CPUS_PER_TASK": "2"},
        f"{TRAIN} concurrency.threads=2 resume=auto run_dir=outputs/slurm-7_2 agent=ppo",
    ),
]
"""Batch script and its arguments, the variables of the job, and what is called."""


@pytest.mark.parametrize(("given", "variables", "calls"), CALLS)
def test_what_batch_scripts_call(cluster, given, variables, calls):
    Path("runs.txt").write_text("agent=a2c agent.gamma=0.9\nagent=ppo\n")
    script, *arguments = given.split()
    assert called(SCRIPTS / f"{script}.sbatch", *arguments, **variables).stdout == f"{calls}\n"


@pytest.mark.parametrize("index", ["0", "3"])
def test_a_task_without_a_line_is_told(cluster, index):
    Path("runs.txt").write_text("agent=a2c\nagent=ppo\n")
    missing = called(SCRIPTS / "sweep.sbatch", "runs.txt", SLURM_ARRAY_TASK_ID=index)
    assert (missing.returncode, missing.stdout) == (2, "") and f"has no line {index}" in missing.stderr


def test_only_what_is_not_done_is_submitted_again(cluster, refusal):
    assert cli.run(["-m", "seed=range(0,4)", "sweep_dir=s", "launcher=slurm"]) == 0
    for number in (0, 2):
        folder = plan.read(cluster / "work" / "s").jobs[number].folder
        folder.mkdir(parents=True)
        rundir.write_status(folder, {"state": "finished"})
    (cluster / "queued").write_text("17_1 R\n")
    assert "1 job of this sweep is still queued or running" in refusal("-m", "sweep_dir=s", "launcher=slurm")
    assert cli.run(["cancel", "s"]) == 0 and (cluster / "cancelled").read_text() == "17_[1]\n"
    (cluster / "queued").write_text("17_1 R\n17_2 PD\n17_3 PD\n")
    assert cli.run(["cancel", "s"]) == 0 and (cluster / "cancelled").read_text() == "17_[1-3]\n"
    (cluster / "queued").write_text("")
    assert cli.run(["-m", "sweep_dir=s", "launcher=slurm"]) == 0
    assert "#SBATCH --array=1,3\n" in (cluster / "work" / "s" / "slurm" / "array.sbatch").read_text()


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
        ("launcher.partition=x", "sbatch refuses the job array: sbatch: error: invalid partition specified: x"),
        ("launcher.time=soon", "launcher.time='soon': write HOURS:MINUTES:SECONDS"),
        ("launcher.cpus=0", "launcher.cpus=0 must be from 1"),
        ("launcher.partition='a b'", "is no name"),
        ("launcher.options=[rm]", "is no option of sbatch"),
    ],
)
def test_settings_that_cannot_work(cluster, refusal, setting, words):
    (cluster / "bin" / "sbatch").write_text('#!/bin/bash\necho "sbatch: error: invalid partition specified: x" >&2; exit 1\n')
    assert words in refusal("-m", "seed=0,1", "sweep_dir=s", "launcher=slurm", setting)
    assert not (cluster / "work" / "s").exists()


def test_ranges():
    for numbers, text in (([0], "0"), ([0, 1, 2, 5], "0-2,5"), ([3, 1], "1,3"), (range(9), "0-8")):
        assert slurm.ranges(list(numbers)) == text


def test_folders_with_spaces(tmp_path):
    made = plan.planned(tmp_path / "a b", [["seed=1"]])
    text = slurm.script(made, made.jobs, SlurmConfig())
    assert f'#SBATCH --output="{tmp_path}/a b/slurm/%A_%a.out"' in text and f"'{tmp_path}/a b'" in text
