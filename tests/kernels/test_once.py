"""Processes that need the same kernel at once: one compiles it, the others load it."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from warprun.kernels import cache
from warprun.kernels.cache import KernelFiles

SOURCE = """
from numba import njit


@njit(cache=True, **FLAGS)
def inner(x):
    for n in range(x.size):
        x[n] = change(x[n])


@njit(cache=True, **FLAGS)
def outer(x):
    for n in range(x.size):
        inner(x)
"""
PROGRAM = f"""
import numpy as np
from warprun import math
from warprun.kernels.compile import FLAGS, load_module
module = load_module("once", {SOURCE!r}, {{"change": math.sin, "FLAGS": FLAGS}})
print("ready", flush=True)
input()
module.outer(np.zeros(2, np.float32))
print(sum(sum(each.stats.cache_misses.values()) for each in (module.inner, module.outer)), flush=True)
"""


def begun(program: str = PROGRAM) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ready(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def told(process: subprocess.Popen[str]) -> str:
    return process.communicate("\n")[0].strip()


def left(folder: Path) -> set[str]:
    return {path.suffix for path in folder.rglob("*") if path.is_file()}


def test_processes_that_start_together_compile_a_kernel_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))
    processes = [ready(each) for each in [begun(), begun(), begun()]]
    for each in processes:
        assert each.stdin
        print(file=each.stdin, flush=True)
    assert sorted(int(told(each)) for each in processes) == [0, 0, 2]
    assert left(tmp_path) == {".py", ".nbc", ".lock"}


@pytest.fixture
def files(tmp_path: Path) -> KernelFiles:
    return KernelFiles(tmp_path, "kernel", pickle.dumps)


KEY = "types", "processor"

HOLDER = """
import sys
from pathlib import Path
from warprun.kernels.cache import KernelFiles
with KernelFiles(Path(sys.argv[1]), "kernel", repr).alone(("types", "processor")):
    print("ready", flush=True)
    input()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that compiles the kernel and does not come to an end."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield ready(process)
        process.kill()


def waits(files: KernelFiles, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether `files` waits for another process."""
    monkeypatch.setattr(cache, "WAIT_S", 0.0)
    said: list[str] = []
    monkeypatch.setattr(cache, "notice", said.append)
    with files.alone(KEY):  # type: ignore[arg-type]
        pass
    return bool(said)


def test_a_process_that_takes_too_long_is_not_waited_for(files, holder, monkeypatch) -> None:
    assert waits(files, monkeypatch)


def test_a_process_that_dies_holds_nobody_up(files, holder, monkeypatch) -> None:
    holder.kill()
    holder.wait()
    assert not waits(files, monkeypatch)


def test_a_kernel_that_is_there_needs_no_lock(files, holder, monkeypatch) -> None:
    files.save(KEY, b"")
    assert not waits(files, monkeypatch)


def test_a_failure_gives_the_lock_back(files, monkeypatch) -> None:
    with pytest.raises(ZeroDivisionError), files.alone(KEY):
        raise ZeroDivisionError
    assert not waits(files, monkeypatch)


@pytest.mark.parametrize("call", [(fcntl, "flock"), (os, "open")])
def test_without_locks_nobody_waits(files, holder, monkeypatch, call) -> None:
    def refuse(*given: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(*call, refuse)
    assert not waits(files, monkeypatch)
