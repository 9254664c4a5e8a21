"""The examples of docs/interop.md run."""

import re
import subprocess
import sys

import pytest

from tests.test_docs import ROOT, blocks, files

PAGE = ROOT / "docs" / "interop.md"
EXAMPLES = [block for block in blocks(PAGE, "python") if not re.match(r"# \S+\.py\n", block)]
NEEDS = ("stable_baselines3", "pettingzoo")


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_runs(example, tmp_path, monkeypatch):
    for library in NEEDS:
        if library in example or (library == "pettingzoo" and "make_parallel" in example):
            pytest.importorskip(library)
    for name, text in files(PAGE).items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(compile(example, str(PAGE), "exec"), {})


def test_gymnasium_makes_what_the_table_names_without_an_import_of_warprun():
    (call,) = re.findall(r"^\| `(gymnasium\.make\(.*?\))`", PAGE.read_text(), flags=re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", f"import gymnasium; print({call}.spec.id)"], capture_output=True, text=True)
    assert done.stdout == "warprun/CartPole-v0\n", done.stderr


def test_there_are_examples():
    assert len(EXAMPLES) == 6
