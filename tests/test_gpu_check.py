"""The check of a GPU machine, with parts that need none: limits of time, the report, and the archive to send."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import load

CHECK = load("gpu_check")


def part(name: str, program: str) -> Any:
    """Return a part that runs a program of Python."""

    def run(machine: Any) -> Any:
        folder = machine.work / "runs" / name
        folder.mkdir(parents=True)
        for file in ("status.json", "weights.ckpt"):
            (folder / file).touch()
        ran = machine.run(name, [sys.executable, "-c", program], 2.0)
        return CHECK.Found(ran.good, ran.why or ran.output, {"seconds": ran.seconds})

    return CHECK.Part(run, 2, 1)


def raises(machine: Any) -> None:
    raise RuntimeError("this part is broken")


def test_parts_end_in_time_and_leave_one_file_to_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {"good": part("good", "print('fine')"), "bad": part("bad", "raise SystemExit(3)")}
    parts |= {"hangs": part("hangs", "import time; time.sleep(600)"), "broken": CHECK.Part(raises, 1, 1)}
    monkeypatch.setattr(CHECK, "PARTS", parts)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--device", "cpu", "--out", str(tmp_path / "report")])
    assert CHECK.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"gpu_check: failed: bad, hangs, broken; send {tmp_path / 'report.zip'}"
    text, data = (tmp_path / "report.md").read_text(), json.loads((tmp_path / "report.json").read_text())
    assert all(words in text for words in ("## good\n\nfine", "exit code 3", "did not end within 2 s", "this part is broken"))
    assert {name: found["good"] for name, found in data["parts"].items()} == {"good": True, "bad": False, "hangs": False, "broken": False}
    names = set(zipfile.ZipFile(tmp_path / "report.zip").namelist())
    assert {"report.md", "report.json", "logs/good.txt", "runs/bad/status.json"} <= names and "runs/bad/weights.ckpt" not in names


def test_a_part_leaves_time_for_the_later_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(CHECK.time, "monotonic", lambda: now[0])
    machine = CHECK.Machine(CHECK.argparse.Namespace(minutes=10.0), tmp_path)
    machine.begin(0.3)
    now[0] = 179.5
    assert machine.run("late", [sys.executable, "-c", ""], 60.0).why == "no time is left (--minutes)"
    machine.begin(0.5)
    assert machine.run("next", [sys.executable, "-c", ""], 60.0).good


def test_tests_that_the_check_chooses_exist() -> None:
    root = Path(CHECK.__file__).parents[1]
    for file, *chosen in CHECK.TESTS.values():
        text = (root / file).read_text()
        assert "mark.gpu" in text
        for words in chosen[1:]:
            assert all(f"{word}" in text for word in words.split(" or "))
