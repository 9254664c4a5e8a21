"""What a run leaves behind where it fails before training begins, and what Numba is told before it is loaded."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from warprun import devices, run
from warprun.compose import compose
from warprun.errors import UserError
from warprun.records import Records


@pytest.fixture
def failing(monkeypatch, tmp_path):
    """Runs that write something and then find a mistake."""

    def fail(config, folder):
        (folder / "config.yaml").touch()
        (folder / "deep").mkdir()
        (folder / "deep" / "file").touch()
        raise UserError("a mistake")

    monkeypatch.setattr(run, "_Run", fail)
    monkeypatch.chdir(tmp_path)


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("there", ["", "mine", "outputs"])
@pytest.mark.parametrize("setting", ["run_dir=mine", "run_dir=mine/a/b", "output_root=outputs", "output_root=outputs/a/b"])
def test_an_early_failure_leaves_what_was_there(failing, tmp_path, there, setting):
    (tmp_path / there).mkdir(exist_ok=True)
    before = left(tmp_path)
    with pytest.raises(UserError, match="a mistake"):
        run.train(compose(["env=cartpole", setting]))
    assert left(tmp_path) == before


def test_an_early_failure_leaves_the_folder_of_another_run(failing, tmp_path):
    other = tmp_path / "outputs" / "other"
    other.mkdir(parents=True)
    with pytest.raises(UserError):
        run.train(compose(["env=cartpole"]))
    assert left(tmp_path) == ["outputs", "outputs/other"]


def test_the_simulator_is_asked_for_only_before_numba_is_there(monkeypatch):
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    devices.prepare("cudasim")  # numba is loaded: too late
    assert "NUMBA_ENABLE_CUDASIM" not in os.environ
    monkeypatch.delitem(sys.modules, "numba")
    devices.prepare("cpu")
    assert "NUMBA_ENABLE_CUDASIM" not in os.environ
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "0")
    devices.prepare("cudasim")
    assert os.environ["NUMBA_ENABLE_CUDASIM"] == "1"


@pytest.mark.parametrize("wanted", [True, False])
def test_tensorboard_can_be_left_out(tmp_path, wanted):
    records = Records(tmp_path, {"log": {"tensorboard": wanted}}, live=False)
    records.start({})
    records.log(10, {"train/return": 1.0})
    records.close()
    assert (tmp_path / "metrics.jsonl").exists()
    assert bool(list(tmp_path.glob("events*"))) == wanted


def test_a_run_that_is_told_to_end_while_it_compiles_leaves_nothing(tmp_path):
    """SLURM may cancel a job at any time; SIGTERM then does what Ctrl-C does."""
    given = ["env=cartpole", "n_envs=64", f"output_root={tmp_path / 'outputs'}"]
    asked = os.environ | {"WARPRUN_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "warprun", *given]
    with subprocess.Popen(command, env=asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert any("compiling" in line for line in process.stdout)  # reads up to there
        process.send_signal(signal.SIGTERM)
        assert "interrupted" in process.stdout.read()
    assert process.returncode == 130
    assert not (tmp_path / "outputs").exists()


def test_who_interrupts_is_obeyed_although_the_aim_is_reached(monkeypatch, tmp_path):
    """Or a sweep would go on with its next run."""
    given = ["env=cartpole", "n_envs=8", "agent=a2c", "env.solved_at=1", "eval.every=1", "eval.episodes=4", "total_steps=1e9"]
    config = compose([*given, f"run_dir={tmp_path / 'run'}", "log.live=false", "device=cpu"])
    played = run.Evaluator.play

    def interrupted(self, greedy):
        os.kill(os.getpid(), signal.SIGINT)
        return played(self, greedy)

    monkeypatch.setattr(run.Evaluator, "play", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.train(config)
    assert '"interrupted"' in (tmp_path / "run" / "status.json").read_text()
