"""The line of what a person waits for: what it says, when there is none, and what is kept for the next time."""

import io
import json
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.finished import until
from warprun.kernels import waiting


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))
    for name in ("PATIENCE_S", "TICK_S", "FIRST_LINE_S", "LINE_S"):
        monkeypatch.setattr(waiting, name, 0.001)


def lines_of(work: str, owner: str = "tank") -> list[str]:
    shown: list[str] = []
    with waiting.shown_by(shown.append), waiting.on(work, owner):
        until(lambda: shown)
    return shown


def test_the_time_of_the_same_work_is_said_the_next_time(tmp_path: Path) -> None:
    *moving, last = lines_of("compiling rollout")
    assert set(moving) == {"compiling rollout of tank: 0 s"} and last == ""
    kept = tmp_path / "waits" / "tank.json"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"compiling rollout": 41.0}))
    assert lines_of("compiling rollout")[0] == "compiling rollout of tank: 0 s (41 s last time)"
    assert lines_of("compiling reset")[0] == "compiling reset of tank: 0 s"
    assert lines_of("compiling rollout", "oven")[0] == "compiling rollout of oven: 0 s"


@pytest.mark.parametrize("text", ["{", "[]", '{"compiling rollout": "long"}'])
def test_times_that_cannot_be_read_are_not_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "waits").mkdir()
    (tmp_path / "waits" / "tank.json").write_text(text)
    assert lines_of("compiling rollout")[0] == "compiling rollout of tank: 0 s"


def test_work_within_work_has_no_line_of_its_own() -> None:
    shown: list[str] = []
    with waiting.shown_by(shown.append), waiting.on("check", "tank"), waiting.on("compiling rollout", "tank"):
        until(lambda: len(shown) > 2)
    assert {text.partition(":")[0] for text in shown} == {"check of tank", ""}


def test_work_that_fails_removes_the_line_and_its_time_is_not_kept(tmp_path: Path) -> None:
    shown: list[str] = []
    with pytest.raises(KeyboardInterrupt), waiting.shown_by(shown.append), waiting.on("compiling rollout", "tank"):
        until(lambda: shown)
        raise KeyboardInterrupt
    assert shown[-1] == "" and not (tmp_path / "waits").exists()


def test_work_whose_line_cannot_begin_does_not_keep_the_next_line_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="can't start new thread"):
        patched.setattr(threading.Thread, "start", full)
        with waiting.on("compiling rollout", "tank"):
            pass
    assert lines_of("compiling rollout")


def test_short_work_has_no_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 60.0)
    shown: list[str] = []
    with waiting.shown_by(shown.append), waiting.on("compiling rollout", "tank"):
        pass
    assert not shown and not (tmp_path / "waits").exists()


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "ends"), [(Screen(), "\r\x1b[K"), (io.StringIO(), "of tank: 0 s\n")])
def test_standard_error_shows_it_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, ends: str) -> None:
    """In a terminal the line moves and is removed; in a file there is a line from time to time."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with waiting.on("compiling rollout", "tank"):
        until(lambda: "compiling rollout of tank: 0 s" in stream.getvalue())
    assert stream.getvalue().endswith(ends)


def test_in_a_file_the_first_line_comes_early_and_the_next_ones_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    pauses: list[float] = []

    class Done(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return len(pauses) > 4

    for name, seconds in (("PATIENCE_S", 1.0), ("FIRST_LINE_S", 5.0), ("LINE_S", 30.0)):
        monkeypatch.setattr(waiting, name, seconds)
    waiting._tell("compiling rollout of tank", None, time.monotonic(), Done())
    assert pauses == [1.0, 4.0, 30.0, 30.0, 30.0]
