"""What is different on macOS, as far as Linux can show it: without the functions that macOS lacks, and where it says that it is macOS."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from warprun.files import to_disk, write_atomic

ROOT = Path(__file__).parents[1]
MACOS = """
import os, sys

for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create"):
    delattr(os, name)


class Platform(str):
    # Only warprun is told: other libraries would load files that macOS has.
    def __eq__(self, other):
        asks = sys._getframe(1).f_globals["__name__"]
        return other == "darwin" if asks.startswith("warprun.") else str(self) == other

    __hash__ = str.__hash__


sys.platform = Platform(sys.platform)
"""
"""What Python executes when it starts."""
F_FULLFSYNC = 51


@pytest.fixture
def elsewhere(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Return a function that starts Python as on macOS, and what it starts, too."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(MACOS)
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])}

    def start(*arguments: str, **given: str) -> "subprocess.Popen[str]":
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, cwd=tmp_path, env=variables | given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


TINY = "env=cartpole n_envs=64 max_minutes=1e-6 eval.episodes=2 eval.final_episodes=2"


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (TINY, "eval/return"),
        (f"-m {TINY} seed=1,2,3 launcher.workers=2", "3 of 3 jobs finished"),
        (f"{TINY} concurrency=ddp concurrency.processes=2", "eval/return"),
        ("env=gymnasium env.id=CartPole-v1 n_envs=4 total_steps=1000 eval.episodes=4 concurrency.workers=2", "eval/return"),
        ("bench env=cartpole agent=a2c sizes=64 threads=1", "64"),
    ],
)
def test_commands_work(command: str, said: str, elsewhere: Callable[..., "subprocess.Popen[str]"]) -> None:
    process = elsewhere("-m", "warprun", *command.split())
    told, errors = process.communicate(timeout=600)
    assert process.returncode == 0 and said in told, errors


PARENT = """
import os, subprocess, sys
child = "import time; from warprun.processes import end_with_parent; end_with_parent(); print('lives', flush=True); time.sleep(600)"
subprocess.run([sys.executable, "-c", child], env=os.environ | {"WARPRUN_PARENT": str(os.getpid())})
"""


def test_a_rank_ends_with_the_process_that_has_started_it(elsewhere: Callable[..., "subprocess.Popen[str]"]) -> None:
    parent = elsewhere("-c", PARENT)
    assert parent.stdout and parent.stdout.readline() == "lives\n"
    parent.send_signal(signal.SIGKILL)
    parent.communicate(timeout=60)  # until nobody has the pipe open


@pytest.mark.parametrize("works", [True, False])
def test_files_are_written_through_to_the_disk(works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def control(handle: int, command: int) -> int:
        calls.append("full")
        assert command == F_FULLFSYNC
        if not works:
            raise OSError(errno.ENOTSUP, "not on this file system")
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", F_FULLFSYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda handle: calls.append("fsync"))
    write_atomic(tmp_path / "file", b"content")
    to_disk([tmp_path / "file", tmp_path])
    assert calls.count("full") == 2 and calls.count("fsync") == (0 if works else 2)
    assert (tmp_path / "file").read_bytes() == b"content"


def test_windows_is_refused() -> None:
    code = "import shutil, sys; sys.platform = 'win32'; import warprun"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("warprun.errors.UserError: warprun runs on Linux and macOS;")


def test_no_two_files_differ_by_capitals_only() -> None:
    """The file systems of macOS would keep one of them."""
    files = [path for top in ("warprun", "conf", "envs", "docs", "tests", "scripts") for path in (ROOT / top).rglob("*")]
    found = {str(path).lower() for path in files}
    assert len(found) == len(files)
