"""A damaged or truncated kernel cache is compiled anew with one line: never an error, and never a wrong kernel."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from warprun.kernels import cache
from warprun.kernels.cache import KernelFiles
from warprun.kernels.compile import FLAGS, cache_root, is_cached, load_module

SOURCE = '''"""Two kernels."""
from numba import njit


@njit(cache=True, **FLAGS)
def twice(x):
    return double(x)


@njit(cache=True, **FLAGS)
def thrice(x):
    return double(x) + x
'''
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: bytes(len(content)),
    "flipped": lambda content: flipped(content, len(content) // 2),
    "first flipped": lambda content: flipped(content, 0),
    "last flipped": lambda content: flipped(content, len(content) - 1),
}


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def double(x):
    return x * 2.0


def load() -> ModuleType:
    """Load the kernels as a new process does."""
    for name in [name for name in sys.modules if name.startswith("warprun_kernels_small")]:
        del sys.modules[name]
    cache._noticed.clear()
    return load_module("small", SOURCE, {"double": double, "FLAGS": FLAGS})


def results(module: ModuleType) -> tuple[float, float]:
    return module.twice(np.float32(4.0)), module.thrice(np.float32(4.0))


def loaded_from_disk(module: ModuleType) -> int:
    return sum(sum(kernel.stats.cache_hits.values()) for kernel in (module.twice, module.thrice))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that is only copied."""
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARPRUN_CACHE_DIR", str(folder))
        assert results(load()) == (8.0, 12.0)
    return folder


@pytest.fixture
def warm(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of compiled kernels."""
    shutil.copytree(compiled, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))
    again = load()
    assert is_cached(again)
    assert (results(again), loaded_from_disk(again)) == ((8.0, 12.0), 2)
    (folder,) = cache_root().iterdir()
    return folder


def test_nothing_is_kept_but_what_is_checked(warm: Path) -> None:
    assert sorted(file.suffix for file in warm.glob("**/*") if file.is_file()) == [".lock", ".lock", ".nbc", ".nbc", ".py"]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("suffix", [".nbc", ".py"])
def test_what_is_damaged_is_made_anew_with_one_line(suffix: str, damage: str, warm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in warm.glob(f"*{suffix}"):
        file.write_bytes(DAMAGE[damage](file.read_bytes()))
    damaged = load()
    assert results(damaged) == (8.0, 12.0)
    assert loaded_from_disk(damaged) == (0 if suffix == ".nbc" else 2)
    assert re.fullmatch(r"warning: kernels: .* damaged; .* anew\n", capsys.readouterr().err)
    again = load()
    assert (results(again), loaded_from_disk(again)) == ((8.0, 12.0), 2)
    assert capsys.readouterr().err == ""


def test_a_file_in_the_place_of_another_is_not_taken(warm: Path) -> None:
    """Both kernels take the same types, and so are asked for by the same key."""
    twice, thrice = sorted(warm.glob("*.nbc"), key=lambda file: file.name.startswith("thrice"))
    content = twice.read_bytes()
    twice.write_bytes(thrice.read_bytes())
    thrice.write_bytes(content)
    assert results(load()) == (8.0, 12.0)


def test_a_file_that_comes_from_another_folder_is_not_taken(warm: Path) -> None:
    made = KernelFiles(warm, "twice", bytes)
    content = b"what it holds"
    assert made._digest(content) != KernelFiles(warm.parent / "small-0", "twice", bytes)._digest(content)


def test_what_another_process_is_writing_is_not_read(warm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half a file has another name until it is whole."""
    kernel = next(warm.glob("twice-*.nbc"))
    kernel.with_suffix(".0123").write_bytes(kernel.read_bytes()[:100])
    kernel.unlink()
    assert results(load()) == (8.0, 12.0)
    assert capsys.readouterr().err == ""


def test_kernels_that_cannot_be_written_are_used_once(warm: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    for file in warm.glob("*.nbc"):
        file.unlink()
    monkeypatch.setattr(cache, "replace", full)
    assert results(load()) == (8.0, 12.0)
    assert capsys.readouterr().err == f"warning: kernels: cannot keep compiled kernels in {warm}: No space left on device\n"
