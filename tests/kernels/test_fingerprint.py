"""What a compiled kernel depends on is in its key: a kernel from before a change would give wrong numbers in silence.

Every edit is made to files on disk, as a person makes it, and the files are imported anew. What must change the key changes it for each
target, and what must not does not.
"""

import importlib
import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba.core.compiler import Compiler

from tests.kernels.edits import CHANGES, FLOATS, SAME, Edit
from warprun.kernels import compile as kernels
from warprun.kernels.compile import load_module
from warprun.kernels.fingerprint import OWN, _versions, fingerprint

CPU = '''"""One step on CPU."""
from numba import njit


@njit(cache=True, **FLAGS)
def kernel(x):
    return step(x)
'''
CUDA = '''"""One step on CUDA."""
from numba import cuda


@cuda.jit(cache=CACHE, fastmath=False)
def kernel(x, y):
    y[0] = step(x)
'''


class Target(NamedTuple):
    source: str
    names: dict[str, Any]
    build: Callable[[Any], Any]


TARGETS = {
    "cpu": Target(CPU, {"FLAGS": kernels.FLAGS}, kernels.kernel_function),
    "cuda": Target(CUDA, {"CACHE": False}, kernels.kernel_function),
    "cudasim": Target(CUDA, {"CACHE": False}, kernels.plain_function),
}


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], ModuleType]]:
    """Write files, and import env.py of them as if for the first time."""
    folder = tmp_path / "files"
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def forget() -> None:
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]
        importlib.invalidate_caches()

    def write_and_import(files: dict[str, str]) -> ModuleType:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        forget()
        return importlib.import_module("env")

    yield write_and_import
    forget()


def edited(edit: Edit) -> dict[str, str]:
    assert edit.old in edit.files[edit.file]
    return edit.files | {edit.file: edit.files[edit.file].replace(edit.old, edit.new)}


def loaded(environment: ModuleType, target: str = "cpu") -> ModuleType:
    chosen = TARGETS[target]
    return load_module("edited", chosen.source, {"step": environment.step} | chosen.names, chosen.build)


def key(environment: ModuleType, target: str) -> str:
    file = loaded(environment, target).__file__
    assert file
    return Path(file).parent.name


@pytest.mark.parametrize("edit", [pytest.param(edit, id=name) for name, edit in CHANGES.items()])
def test_an_edit_changes_the_key(edit: Edit, imported: Callable[[dict[str, str]], ModuleType]) -> None:
    before = {target: key(imported(edit.files), target) for target in TARGETS}
    again = {target: key(imported(edit.files), target) for target in TARGETS}
    after = {target: key(imported(edited(edit)), target) for target in TARGETS}
    assert again == before
    assert [target for target in TARGETS if after[target] == before[target]] == []


@pytest.mark.parametrize("edit", [pytest.param(edit, id=name) for name, edit in SAME.items()])
def test_what_is_not_compiled_leaves_the_key(edit: Edit, imported: Callable[[dict[str, str]], ModuleType]) -> None:
    before = {target: key(imported(edit.files), target) for target in TARGETS}
    assert {target: key(imported(edited(edit)), target) for target in TARGETS} == before


@pytest.mark.by_default(3)
@pytest.mark.parametrize("edit", [pytest.param(edit, id=name) for name, edit in CHANGES.items() if edit.result])
def test_an_edit_changes_the_result(edit: Edit, imported: Callable[[dict[str, str]], ModuleType]) -> None:
    assert edit.result
    assert loaded(imported(edit.files)).kernel(np.float32(4.0)) == pytest.approx(edit.result[0], rel=1e-6)
    assert loaded(imported(edited(edit))).kernel(np.float32(4.0)) == pytest.approx(edit.result[1], rel=1e-6)


def compiler(noalias):

    class Promising(Compiler):
        def __init__(self, *given):
            given[5].noalias = noalias
            super().__init__(*given)

    return Promising


def test_every_file_that_writes_code_is_in_the_key():
    folder = Path(str(kernels.__file__)).parent
    writers = {path for path in folder.glob("*.py") if re.search(r"from llvmlite import ir|\(Compiler\)|@intrinsic", path.read_text())}
    own = {Path(str(each.__file__)) for each in OWN}
    assert writers <= own and {folder / "lane_cut.py", folder / "lane_values.py", folder / "lane_regions.py"} <= own


def test_what_a_compiler_does_is_in_the_key():
    assert fingerprint({"FLAGS": kernels.KERNELS}) != fingerprint({"FLAGS": kernels.FLAGS})
    assert fingerprint({"FLAGS": {"pipeline_class": compiler(True)}}) == fingerprint({"FLAGS": {"pipeline_class": compiler(True)}})
    assert fingerprint({"FLAGS": {"pipeline_class": compiler(True)}}) != fingerprint({"FLAGS": {"pipeline_class": compiler(False)}})


def test_comments_are_not_in_the_key(tmp_path, monkeypatch, capsys) -> None:
    """They hold the lines of functions, which move without any change to what is compiled."""
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))
    named = {"step": wider, "FLAGS": kernels.FLAGS}
    first = load_module("moved", CPU.replace("    return step", "    # env.py:3 step\n    return step"), named)
    sys.modules.pop(first.__name__)
    moved = CPU.replace("    return step", "    # env.py:7 step\n    return step")
    second = load_module("moved", moved, named)
    assert first is not second and first.__file__ == second.__file__
    assert Path(second.__file__).read_text() == moved
    assert not capsys.readouterr().err


class Law:
    """A value of which nothing is known."""

    g = 2.0


def unknown(x):
    return x * LAW.g if x < 0 else x * 2.0


LAW = Law()


def test_what_cannot_be_hashed_is_not_kept(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))
    first, second = (load_module("edited", CPU, {"step": unknown, "FLAGS": kernels.FLAGS}) for _ in range(2))
    assert first is not second
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert re.fullmatch(r"warning: kernels: .* not kept: .*test_fingerprint.py:\d+ in unknown: `LAW` is a Law, which has no hash", said[0])


def wider(x):
    return x * TABLE[1]


TABLE = np.array([1, 2])


def test_a_constant_that_changes_in_place_makes_another_kernel(tmp_path, monkeypatch) -> None:
    """The same process goes on with a function that it has compiled before."""
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))
    for value in (2, 3):
        TABLE[1] = value
        assert load_module("edited", CPU, {"step": wider, "FLAGS": kernels.FLAGS}).kernel(np.float32(4.0)) == 4.0 * value


@pytest.mark.parametrize("package", ["numba", "llvmlite", "numpy", "numba-cuda"])
def test_versions_and_settings_of_numba_are_in_the_key(package: str, monkeypatch) -> None:
    version = importlib.metadata.version
    before = fingerprint(1.0)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0" if name == package else version(name))
    _versions.cache_clear()
    try:
        assert fingerprint(1.0) != before
    finally:
        _versions.cache_clear()
    monkeypatch.undo()
    assert fingerprint(1.0) == before
    monkeypatch.setattr(numba.config, "BOUNDSCHECK", 1)
    assert fingerprint(1.0) != before


def first(x):
    return second(x - 1) if x > 0 else x


def second(x):
    return first(x - 1) if x > 0 else -x


def test_functions_that_refer_to_each_other_have_a_hash() -> None:
    assert fingerprint(first) == fingerprint(first) != fingerprint(second)


@pytest.mark.by_default(3)
@pytest.mark.parametrize("edit", [pytest.param(edit, id=name) for name, edit in FLOATS.items()])
def test_floats_are_float32_wherever_they_stand(edit: Edit, imported: Callable[[dict[str, str]], ModuleType]) -> None:
    kernel = loaded(imported(edit.files)).kernel
    kernel(np.float32(4.0))
    assert [str(overload.signature.return_type) for overload in kernel.overloads.values()] == ["float32"]
