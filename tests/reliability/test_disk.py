"""Disks that are full, limited or gone, and damaged checkpoints: no run ends well without a good one, and the last good one stays."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.finished import until
from tests.reliability.runs import begin, command, wait
from warprun.cli.main import run
from warprun.errors import UserError
from warprun.runs import checkpoint, rundir

LONG = ["total_steps=100000000", "checkpoint.every=20iterations", "log.every=20iterations", "eval.every=never"]


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    """Compile the kernels that forked processes inherit."""
    assert run(command("a2c", tmp_path_factory.mktemp("warm") / "run")) == 0


class Begun:
    """A long run in a process of its own, once it has a checkpoint."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder, self.log = folder, log
        self.pid = begin(command("a2c", folder, *LONG), log)
        until((folder / "checkpoints" / "manifest.json").exists)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        os.kill(self.pid, number)
        return wait(self.pid)


@pytest.fixture
def begun(tmp_path: Path) -> Begun:
    return Begun(tmp_path / "run", tmp_path / "log")


def said(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if line.startswith("warprun: error")]


@pytest.mark.parametrize(("size", "code", "words"), [(16_000, 1, ("checkpoint to", "no checkpoint yet")), (1024, 2, ("environment",))])
def test_no_space_for_files_or_for_any_checkpoint(tmp_path, size, code, words):
    """Files of the run cannot grow beyond `size` bytes."""
    folder, log = tmp_path / "run", tmp_path / "log"
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        os._exit(wait(begin(command("a2c", folder), log)))
    assert wait(pid) == code
    (line,) = said(log)
    assert "cannot write " in line and str(folder) in line and "File too large" in line and all(word in line for word in words)
    assert not list(folder.rglob("*.tmp")) and not list(folder.rglob("*.ckpt"))
    assert rundir.read_status(folder)["state"] == "failed" if code == 1 else not folder.exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB; only root can mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip("cannot mount a file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_disk_that_fills_up(small_disk, tmp_path, comes_back):
    run = Begun(small_disk / "run", tmp_path / "log")
    with (small_disk / "other").open("wb", buffering=0) as other, pytest.raises(OSError, match="No space left"):
        while True:
            other.write(bytes(4096))
    there = checkpoint.load(run.folder).env_steps
    until(lambda: "training goes on" in run.log.read_text())
    if comes_back:
        (small_disk / "other").unlink()
        assert run.end() == 143
        assert checkpoint.load(run.folder).meta["run"]
        assert rundir.read_status(run.folder)["state"] == "interrupted"
        return
    assert run.end() == 1
    (line,) = said(run.log)
    assert "cannot write a checkpoint" in line and "No space left on device" in line and str(run.folder) in line
    assert checkpoint.load(run.folder).env_steps >= there
    for row in (run.folder / "metrics.jsonl").read_text().splitlines():
        json.loads(row)  # no torn line


def remove(folder: Path) -> None:
    folder.rename(folder.with_name("away"))  # at once: the run writes into it
    shutil.rmtree(folder.with_name("away"), ignore_errors=True)


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


@pytest.mark.parametrize("change", [remove, rename])
def test_a_run_folder_that_is_removed_is_noticed(begun, change: Callable[[Path], None]):
    change(begun.folder)
    assert wait(begun.pid) == 1
    (line,) = said(begun.log)
    assert f"the run folder {begun.folder} was removed during the run" in line
    assert not begun.folder.exists()


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").touch()
    for wanted in (Path("/proc/warprun"), tmp_path / "file" / "run"):  # where nobody can make one, not even root
        assert run(command("a2c", wanted)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert str(wanted) in line


def together(folder: Path, logs: Path, n: int) -> None:
    """Start two runs in one folder at once: one trains, the other is refused."""
    place = folder / str(n)
    pids = [begin(command("a2c", place), logs / f"{n}-{which}") for which in "ab"]
    codes = sorted(wait(pid) for pid in pids)
    assert codes == [0, 2], [(logs / f"{n}-{which}").read_text() for which in "ab"]
    errors = [line for which in "ab" for line in said(logs / f"{n}-{which}")]
    assert len(errors) == 1 and str(place) in errors[0]
    steps = [json.loads(line)["env_steps"] for line in (place / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert rundir.read_status(place)["state"] == "finished"


@pytest.mark.parametrize("pairs", [3, pytest.param(50, marks=pytest.mark.reliability)])
def test_two_runs_in_one_folder_at_once(tmp_path, pairs):
    for n in range(pairs):
        together(tmp_path, tmp_path, n)


def test_a_running_run_is_not_resumed_and_a_killed_one_is_not_running_for_ever(begun, capsys):
    assert run([f"resume={begun.folder}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"another process is training in {begun.folder} (process {begun.pid} on" in line
    assert rundir.read_status(begun.folder)["state"] == "running"
    begun.end(signal.SIGKILL)
    status = rundir.read_status(begun.folder)
    assert (status["state"], status["pid"]) == ("killed", begun.pid)


# Damaged checkpoints: every changed bit is detected -------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a run whose checkpoints are one of the last."""
    folder = tmp_path_factory.mktemp("damage") / "run"
    assert run(command("dqn", folder, "checkpoint.keep=1")) == 0
    return folder


def flip(data: bytearray, draw: random.Random) -> None:
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def truncate(data: bytearray, draw: random.Random) -> None:
    del data[draw.randrange(len(data)) :]


def zero(data: bytearray, draw: random.Random) -> None:
    while True:
        begin = draw.randrange(len(data) // 512) * 512
        if any(data[begin : begin + 512]):
            data[begin : begin + 512] = bytes(len(data[begin : begin + 512]))
            return


KINDS: dict[str, tuple[Callable[[bytearray, random.Random], None], int]] = {
    "flip": (flip, 2000),
    "truncate": (truncate, 1000),
    "zero": (zero, 500),
}


@pytest.mark.parametrize("often", [False, pytest.param(True, marks=pytest.mark.reliability)])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_detected(saved, tmp_path, kind, often):
    damage, count = KINDS[kind]
    draw, place = random.Random(kind), tmp_path / "run"
    shutil.copytree(saved, place)
    path = next((place / checkpoint.LAST).glob("*.ckpt"))
    whole = path.read_bytes()
    for _ in range(count if often else 30):
        data = bytearray(whole)
        damage(data, draw)
        path.write_bytes(data)
        with pytest.raises(UserError) as error:
            checkpoint.load(place)
        assert "\n" not in str(error.value)
    path.write_bytes(whole)
    checkpoint.load(place)
