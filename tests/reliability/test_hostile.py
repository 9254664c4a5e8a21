"""Folders of runs and sweeps that somebody else made to do harm: commands end at once, in one line, and write nowhere else."""

from __future__ import annotations

import json
import os
import signal
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.report.made import made
from warprun.cli import main as cli
from warprun.config.run_folder import JOBS
from warprun.runtime.records.jsonl import read_rows
from warprun.sweeps import plan

Captured = pytest.CaptureFixture[str]
LONG = "1" * 400
"""No float has as many digits."""
ROW = '{"env_steps": %s, "wall_s": 1, "eval/return": %s, "perf/eval_ms": 1, "train/progress": %s}\n'
ROWS = {
    "digits": ROW % (LONG, LONG, LONG),
    "more digits": ROW % (LONG * 20, 1, 1),
    "not finite": ROW % ("NaN", "Infinity", "-Infinity"),
    "range": ROW % (1e308, -1e308, 1e-308) + ROW % (1e308, 1e308, 1e308),
    "types": ROW % ('"1"', "[1]", "{}") + "[]\nnull\n1\n" + ROW % ("true", "true", "true"),
    "depth": "[" * 100_000 + "\n" + '{"a":' * 100_000 + "\n",
    "disorder": ROW % (9, 1, 1) + ROW % (1, 2, 1),
    "escapes": ROW % (1, 1, 1) + '{"env_steps": 2, "wall_s": 2, "eval/\\ud800\\u001b[2J/return": 1, "perf/eval_ms": 1}\n',
}
STATUS = {
    "state": '{"state": "exploded"}',
    "type": '{"state": ["running"]}',
    "list": "[1]",
    "depth": "[" * 100_000,
    "not finite": '{"state": "failed", "env_steps": NaN, "wall_s": Infinity, "eval": NaN, "attempts": NaN}',
    "digits": f'{{"state": "failed", "env_steps": {LONG * 20}}}',
    "range": '{"state": "finished", "env_steps": 1e308, "wall_s": 1e308, "eval": -1e308, "eval_stderr": 1e-308, "attempts": -1}',
    "types": '{"state": "finished", "env_steps": "1", "wall_s": [], "eval": {}, "eval_stderr": true, "error": {"a": 1}, "pid": "x"}',
    "escapes": '{"state": "failed", "error": "\\ud800\\u001b[2J\\nx", "pid": 1, "host": "\\u0000"}',
}
PLANS = {
    "job": '{"format": 1, "search": null, "working_folder": "/", "jobs": [1]}',
    "search": '{"format": 1, "search": [1], "working_folder": "/", "jobs": [{"overrides": ["seed=1"], "run": "a"}]}',
    "zero": '{"format": 1, "search": null, "working_folder": "\\u0000", "jobs": [{"overrides": [], "run": "\\u0000"}]}',
    "outside": '{"format": 1, "search": null, "working_folder": "/", "jobs": [{"overrides": [], "run": ".."}]}',
    "itself": '{"format": 1, "search": null, "working_folder": "/", "jobs": [{"overrides": [], "run": ""}]}',
    "its jobs": '{"format": 1, "search": null, "working_folder": "/", "jobs": [{"overrides": [], "run": "jobs"}]}',
    "twice": '{"format": 1, "search": null, "working_folder": "/", "jobs": [{"overrides": [], "run": "a"}, {"overrides": [], "run": "a"}]}',
    "depth": "[" * 100_000,
    "digits": f'{{"format": {LONG * 20}}}',
}


@contextmanager
def in_time() -> Iterator[None]:
    """Fail instead of waiting for ever."""

    def fail(number: int, frame: object) -> None:
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sweep of somebody else with one job that runs, in another folder than the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warprun.report.report.find_spec", lambda name: None)
    folder = tmp_path / "theirs"
    made(folder / "0000", [1.0, 2.0])
    (folder / JOBS / "0000").mkdir(parents=True)
    (folder / JOBS / "0000" / "status.json").write_text('{"state": "failed"}')
    content = {"format": 1, "search": None, "working_folder": str(folder), "jobs": [{"overrides": ["seed=1"], "run": "0000"}]}
    (folder / plan.PLAN).write_text(json.dumps(content))
    return folder


def told(capsys: Captured, *arguments: str, codes: tuple[int, ...] = (0, 1, 2)) -> str:
    """Return what a command says on standard error: nothing, or one line that is no error of Python."""
    capsys.readouterr()
    with in_time(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # which numpy would print
        code = cli.run(list(arguments))
    out, err = capsys.readouterr()
    assert code in codes and "Traceback" not in err and "Error:" not in err, err
    assert len(err.splitlines()) <= (code == 2) and "\x1b" not in out + err, err
    return err


def replace(path: Path, kind: str) -> None:
    """Put something in the place of a file that is none."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "loop": path.name, "nothing": "/nowhere", "proc": "/proc/self/mem"}[kind])


KINDS = ("pipe", "device", "loop", "nothing", "folder", "proc")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", ["metrics.jsonl", "status.json", "config.yaml", "lock", f"../{JOBS}/0000/status.json", "../plan.json"])
def test_what_is_no_file_is_not_waited_for(sweep: Path, file: str, kind: str, capsys: Captured) -> None:
    replace(sweep / "0000" / file, kind)
    told(capsys, "status", "theirs")
    told(capsys, "report", "theirs")


@pytest.mark.parametrize("case", ROWS)
def test_records_of_others(sweep: Path, case: str, capsys: Captured) -> None:
    (sweep / "0000" / "metrics.jsonl").write_text(ROWS[case])
    told(capsys, "status", "theirs", codes=(1,))
    told(capsys, "report", "theirs")
    made(sweep / "good", [1.0, 2.0])
    told(capsys, "report", "theirs", codes=(0,))


@pytest.mark.parametrize("case", STATUS)
def test_states_of_others(sweep: Path, case: str, capsys: Captured) -> None:
    for place in ("0000", f"{JOBS}/0000"):
        (sweep / place / "status.json").write_text(STATUS[case])
        told(capsys, "status", "theirs")
        told(capsys, "report", "theirs", "unfinished=true", codes=(0,))


@pytest.mark.parametrize("case", PLANS)
def test_plans_of_others(sweep: Path, case: str, capsys: Captured) -> None:
    (sweep / plan.PLAN).write_text(PLANS[case])
    assert "plan.json" in told(capsys, "status", "theirs", codes=(2,))


def test_many_tiny_rows_take_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warprun.runtime.records.jsonl.MAX_LINES", 5_000)
    path = tmp_path / "metrics.jsonl"
    tags = ", ".join(f'"t{n}": 1' for n in range(100))
    path.write_text(f'{{"env_steps": 1, "wall_s": 1, {tags}}}\n' * 2_000 + "{}\n" * 1_000_000)
    tracemalloc.start()
    with pytest.raises(Exception, match="lines"):
        read_rows(path, "env_steps".__eq__)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_a_report_follows_no_link(tmp_path: Path, capsys: Captured) -> None:
    for seed in (0, 1):
        made(tmp_path / "runs" / str(seed), [1.0, 500.0], settings={"seed": seed, "n_envs": 8 + seed})
    out = tmp_path / "report"
    out.mkdir()
    (tmp_path / "precious").write_text("mine")
    names = [f"{name}.{end}" for name in ("learning", "scores", "throughput", "profiles", "improvement") for end in ("svg", "png")]
    names += ["report.html", "report.md", "runs.csv", "settings.csv", "curves.csv"]
    for name in names:
        (out / name).symlink_to(tmp_path / "precious")
    told(capsys, "report", str(tmp_path / "runs"), f"out={out}", codes=(0,))
    assert (tmp_path / "precious").read_text() == "mine" and not any(path.is_symlink() for path in out.iterdir())
