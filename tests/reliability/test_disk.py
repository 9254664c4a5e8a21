"""Disks that are full, limited or gone, and damaged checkpoints: no run ends well without a good one, and the last good one stays."""

import json
import os
import random
import resource
import shutil
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


def said(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if line.startswith("warprun: error")]


def limited(arguments: list[str], log: Path, size: int) -> int:
    """Run a command whose files cannot grow beyond `size` bytes; return its code."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        os._exit(wait(begin(arguments, log)))
    return wait(pid)


def test_no_space_for_any_checkpoint(tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    assert limited(command("a2c", folder), log, 16_000) == 1
    (line,) = said(log)
    assert (
        f"cannot write a checkpoint to {folder / 'checkpoints' / 'step_'}" in line
        and "File too large" in line
        and "no checkpoint yet" in line
    )
    assert rundir.read_status(folder)["state"] == "failed"
    assert not list(folder.rglob("*.tmp")) and not list(folder.rglob("*.ckpt"))


def test_a_run_that_cannot_write_its_first_files_names_one(tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    assert limited(command("a2c", folder), log, 1024) == 2
    (line,) = said(log)
    assert line.startswith(f"warprun: error: cannot write {folder / 'environment'}") and line.endswith("File too large")
    assert not folder.exists()


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


def test_a_disk_that_fills_up(small_disk, tmp_path):
    folder, log = small_disk / "run", tmp_path / "log"
    pid = begin(command("a2c", folder, *LONG), log)
    until((folder / "checkpoints" / "manifest.json").exists)
    (small_disk / "other").write_bytes(b"")
    with (small_disk / "other").open("wb", buffering=0) as other, pytest.raises(OSError, match="No space left"):
        while True:
            other.write(bytes(4096))
    there = checkpoint.load(folder).env_steps
    until(lambda: "training goes on" in log.read_text())
    os.kill(pid, 15)
    assert wait(pid) == 1
    (line,) = said(log)
    assert "cannot write a checkpoint" in line and "No space left on device" in line and str(folder) in line
    assert checkpoint.load(folder).env_steps >= there
    for row in (folder / "metrics.jsonl").read_text().splitlines():
        json.loads(row)  # no torn line


def test_space_comes_back(small_disk, tmp_path):
    folder, log = small_disk / "run", tmp_path / "log"
    pid = begin(command("a2c", folder, *LONG), log)
    until((folder / "checkpoints" / "manifest.json").exists)
    (small_disk / "other").write_bytes(bytes(1_900_000 - sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())))
    until(lambda: "training goes on" in log.read_text())
    (small_disk / "other").unlink()
    os.kill(pid, 15)
    assert wait(pid) == 143
    assert checkpoint.load(folder).meta["run"]
    assert rundir.read_status(folder)["state"] == "interrupted"


def remove(folder: Path) -> None:
    folder.rename(folder.with_name("away"))  # at once: the run writes into it
    shutil.rmtree(folder.with_name("away"), ignore_errors=True)


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


@pytest.mark.parametrize("change", [remove, rename])
def test_a_run_folder_that_is_removed_is_noticed(tmp_path, change: Callable[[Path], None]):
    folder, log = tmp_path / "run", tmp_path / "log"
    pid = begin(command("a2c", folder, *LONG), log)
    until((folder / "checkpoints" / "manifest.json").exists)
    change(folder)
    assert wait(pid) == 1
    (line,) = said(log)
    assert f"the run folder {folder} was removed during the run" in line
    assert not folder.exists()


def read_only_root(folder: Path) -> Path:
    """Return a path where nobody, not even root, can make a folder."""
    (folder / "file").write_text("")
    return folder / "file" / "run"


@pytest.mark.parametrize("place", [lambda _: Path("/proc/warprun"), read_only_root])
def test_a_folder_that_cannot_be_made(tmp_path, capsys, place):
    wanted = place(tmp_path)
    assert run(command("a2c", wanted)) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and str(wanted) in errors[0]


@pytest.mark.slow
def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    process = subprocess.run(
        ["python", "-m", "warprun", "env=cartpole", "agent=a2c", "device=cpu", "n_envs=16", "total_steps=200", "eval.episodes=2"],
        env=os.environ | {"WARPRUN_CACHE_DIR": str(tmp_path / "file")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    (line,) = process.stderr.splitlines()
    assert "cannot keep compiled kernels" in line and "Not a directory" in line


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


def test_a_killed_run_is_not_running_for_ever(tmp_path):
    folder = tmp_path / "run"
    pid = begin(command("a2c", folder, *LONG), tmp_path / "log")
    until((folder / "checkpoints" / "manifest.json").exists)
    assert rundir.read_status(folder)["state"] == "running"
    os.kill(pid, 9)
    wait(pid)
    status = rundir.read_status(folder)
    assert status["state"] == "killed"
    assert status["pid"] == pid


def test_resume_refuses_a_run_that_is_running(tmp_path, capsys):
    folder = tmp_path / "run"
    pid = begin(command("a2c", folder, *LONG), tmp_path / "log")
    until((folder / "checkpoints" / "manifest.json").exists)
    assert run([f"resume={folder}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"another process is training in {folder} (process {pid} on" in line
    os.kill(pid, 15)
    assert wait(pid) == 143


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


def undetected(saved: Path, place: Path, kind: str, count: int) -> int:
    """Damage the checkpoint `count` times and return how often it was loaded nevertheless."""
    damage, draw, missed = KINDS[kind][0], random.Random(kind), 0
    shutil.copytree(saved, place)
    path = next((place / checkpoint.LAST).glob("*.ckpt"))
    whole = path.read_bytes()
    for _ in range(count):
        data = bytearray(whole)
        damage(data, draw)
        path.write_bytes(data)
        try:
            checkpoint.load(place)
            missed += 1
        except UserError as error:
            assert "\n" not in str(error)
    path.write_bytes(whole)
    checkpoint.load(place)
    return missed


@pytest.mark.parametrize("often", [False, pytest.param(True, marks=pytest.mark.reliability)])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_detected(saved, tmp_path, kind, often):
    count = KINDS[kind][1] if often else 30
    assert undetected(saved, tmp_path / "run", kind, count) == 0
    print(f"{kind}: {count} of {count} detected")
