"""Every command that warprun prints for a person is run exactly as it is printed, in folders whose names a shell or Hydra could misread."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.words import words
from tests.written import add_programs
from warprun import errors
from warprun.cli import main as cli
from warprun.cli import sweeps
from warprun.runs import run as runs
from warprun.runs import rundir
from warprun.sweeps import plan, view

ALL_IN_ONE = "a  b=c,d [e] {f} (g) 'h' \"i\" ü日 & * ; # \\ !"
FOLDERS = ["key=value", "[list]", "'quoted'", "-dash", "~home", "null"]
"""Where the beginning, or all of it, matters."""
TINY = words("""
    env=cartpole agent=a2c n_envs=8 total_steps=256 tuned=none device=cpu concurrency.threads=1 eval.episodes=2
    eval.final_episodes=2 log.live=false
""")
SWEPT = ["-m", "seed=0,1", *TINY]
Printed = Callable[..., list[str]]
in_some_folders = pytest.mark.parametrize("folder", [ALL_IN_ONE, "key=value", "~home"], indirect=True)
"""For tests that start many programs: what shells and Hydra misread most."""


@pytest.fixture(params=[ALL_IN_ONE, *(pytest.param(name, marks=pytest.mark.long) for name in FOLDERS)])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a folder for runs and sweeps; the working folder has this name too."""
    here = tmp_path / request.param
    here.mkdir()
    monkeypatch.chdir(here)
    return str(request.param)


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Printed:
    """Return a function that calls warprun and returns the commands that it prints."""

    def call(*arguments: str, code: int = 0) -> list[str]:
        capfd.readouterr()
        assert cli.run(arguments) == code
        told = "\n".join(capfd.readouterr())
        assert told.count("next:\n") <= 1
        return list(_commands(told))

    return call


def _commands(told: str) -> Iterator[str]:
    """Yield the commands in what warprun has printed: after `next:`, at the end of a line, and in backticks."""
    for line in told.splitlines():
        found = re.search(r"`([^`]*)`|(?:^  |^continue: |: )((?:\S*warprun|tensorboard|mkdir) .*)$", line)
        if found and re.search(r"warprun|tensorboard", line):
            yield found[1] or found[2]


def shell(*given: str) -> list[str]:
    """Run commands through bash, as they are; return what they print. TensorBoard only looks at its arguments: it would not end."""
    told = []
    for command in given:
        words = f"{command} --version" if "tensorboard" in command else command
        done = subprocess.run(["bash", "-c", words], capture_output=True, text=True)
        print(f"{done.returncode}  {command}")
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        told.append(done.stdout)
    return told


def test_a_run(folder: str, printed: Printed) -> None:
    evaluation, board, report = printed(*TINY, f"run_dir=./{folder}/1")
    assert "--logdir" in board
    assert "checkpoint: last" in shell(evaluation, board, report)[0]
    assert Path("report/report.html").is_file()


@pytest.mark.by_default(0)
def test_a_run_that_is_interrupted(folder: str, printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as stopped:
        stopped.setattr(runs, "is_stopped", lambda: True)
        continuing, *_ = printed(*TINY, f"run_dir=./{folder}")
    assert printed(*TINY, f"run_dir=./{folder}", code=2) == [continuing]
    shell(continuing)
    assert json.loads((Path(folder) / "status.json").read_text())["state"] == "finished"


@pytest.mark.long
@in_some_folders
def test_a_sweep(folder: str, printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as stopped:
        stopped.setattr(view, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        (continuing,) = printed(*SWEPT, f"sweep_dir=./{folder}", code=130)
    (again,) = printed("-m", "seed=5", *TINY, f"sweep_dir=./{folder}", code=2)
    assert again == continuing
    told = shell(continuing)[0]
    assert told.count("next:\n") == 1
    report, evaluation = _commands(told)
    shell(report, evaluation)
    (line,) = [line for line in shell(f"{errors.program()} status")[0].splitlines() if "jobs finished" in line]
    assert "2 of 2 jobs finished" in line


@pytest.mark.by_default(1)
@in_some_folders
def test_jobs_that_run_elsewhere(folder: str, printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "SETTLE_S", 0.0)
    made = plan.planned(Path(folder), [[*TINY, f"seed={seed}"] for seed in (0, 1)])
    plan.claimed(made, Path("outputs")).release()
    held = []
    for job in made.jobs:
        job.folder.mkdir(parents=True)
        held.append(rundir.Held(job.folder))
        rundir.write_status(job.folder, {"state": "running"})
    shell(*printed("-m", f"sweep_dir=./{folder}"))
    for one in held:
        one.release()


def test_a_job_array(folder: str, printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_programs(tmp_path / "bin", {"sbatch": "echo 17", "squeue": "echo 17_0", "scancel": "true"})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    status, cancel = printed(*SWEPT, "launcher=slurm", f"sweep_dir=./{folder}")
    shell(status)
    shell(cancel)


@pytest.mark.long
@in_some_folders
def test_a_study(folder: str, printed: Printed) -> None:
    pytest.importorskip("optuna")
    search = ["agent.learning_rate=tag(log,interval(1e-4,1e-3))", "trials=2", *TINY]
    evaluation, sweep = printed("tune", *search, f"sweep_dir=./{folder}")
    shell(evaluation, sweep)
    assert Path("conf/experiment/best.yaml").is_file()


@pytest.mark.long
def test_folders_of_earlier_versions(here: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Job folders had names with `=` and commas; every verb takes them."""
    with monkeypatch.context() as earlier:
        earlier.setattr(plan, "folder_name", lambda text: f"{text.replace('-', '=', 1)},seed=0")
        report, _ = printed("-m", "seed=0", "agent.gamma=0.9,0.99", *TINY, "sweep_dir=s")
    one = "s/0000_gamma=0.9,seed=0"
    assert printed("-m", "sweep_dir=s")[0] == report
    for call in (
        ["eval", one],
        ["eval", f"{one}/"],
        ["export", one, "./a=b.npz"],
        ["play", one, "policy=random"],
        ["report", one],
        ["report", one, "s/0001_gamma=0.99,seed=0", "out=r"],
        ["status", "s"],
        ["job", "s", "0"],
        [f"resume={one}", "total_steps=512"],
    ):
        printed(*call)
    monkeypatch.chdir("s")
    printed("eval", "0000_gamma=0.9,seed=0")
