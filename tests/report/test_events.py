"""Event files of TensorBoard that a report writes for runs without one."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.report.made import made
from warprun.cli import main as cli

STARTED = "2026-01-02T03:04:05.000000+00:00"


def test_a_report_writes_the_event_files_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        folder = made(Path("runs", str(seed)), [1.0, 2.0 + seed], settings={"seed": seed})
        status = json.loads((folder / "status.json").read_text())
        (folder / "status.json").write_text(json.dumps(status | {"started": STARTED}))
    (Path("runs/1") / "events.out.tfevents.1.here").touch()
    assert cli.run(["report", "runs"]) == 0
    assert not list(Path("runs/0").glob("events*"))
    assert cli.run(["report", "runs", "tensorboard=true"]) == 0
    assert "event files for TensorBoard: 2 written" in capsys.readouterr().out
    assert [len(list(Path("runs", str(seed)).glob("events*"))) for seed in range(3)] == [1, 1, 1]
    found = EventAccumulator("runs/2").Reload()
    values = found.Scalars("eval/return")
    assert [(value.step, value.value) for value in values] == [(1000, 1.0), (2000, 4.0)]
    assert values[1].wall_time == pytest.approx(datetime.fromisoformat(STARTED).timestamp() + 2.0)
    assert "env_steps" not in found.Tags()["scalars"]
    assert cli.run(["report", "runs", "tensorboard=true"]) == 0
    assert "event files for TensorBoard: 0 written" in capsys.readouterr().out
