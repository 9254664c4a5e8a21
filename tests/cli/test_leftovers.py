"""What killed processes of MPI leave in /dev/shm is removed, and nothing else."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from warprun.parallel.launch import SHARED_MEMORY as FOLDER
from warprun.parallel.launch import leftovers_removed

if not FOLDER.is_dir():
    pytest.skip("there is no /dev/shm", allow_module_level=True)


@pytest.fixture
def files(request: pytest.FixtureRequest) -> Iterator[dict[str, Path]]:
    """Names of files, none of which exists yet."""
    unique = f"{abs(hash(request.node.name)):x}"
    paths = {
        name: FOLDER / f"{begin}_{name}_{unique}"
        for name, begin in zip("abcd", ["mpich_shm", "mpich_shar", "mpich_shm", "other"], strict=True)
    }
    yield paths
    for path in paths.values():
        path.unlink(missing_ok=True)


def test_files_of_ended_processes_are_removed(files: dict[str, Path]) -> None:
    files["a"].write_bytes(bytes(4096))  # it was there before
    with leftovers_removed():
        script = (
            f"import os, pathlib, signal; pathlib.Path({str(files['b'])!r}).write_bytes(bytes(4096)); os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", script])
        files["d"].write_bytes(bytes(4096))  # of another program
    assert files["a"].exists()
    assert not files["b"].exists()
    assert files["d"].exists()


def test_files_that_a_process_holds_stay(files: dict[str, Path]) -> None:
    with leftovers_removed():
        files["b"].write_bytes(bytes(4096))
        files["c"].write_bytes(bytes(4096))
        opened = files["c"].open("rb")
        with files["b"].open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 4096)
    assert files["b"].exists() and files["c"].exists()
    opened.close()
    mapped.close()
