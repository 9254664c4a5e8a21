import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams import metadata

from warprun.errors import UserError
from warprun.runs.records import Records, jsonl
from warprun.runs.records.jsonl import Appender, JsonLines, cut, last_rows, read_rows

CONFIG = {
    "name": "cartpole_ppo",
    "total_steps": 1000,
    "max_minutes": None,
    "agent": {"lr": 1e-4, "hidden": [64, 64], "normalise": True, "kind": "ppo"},
}


def metrics(folder: Path) -> list[dict]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events(folder).Scalars(tag)]


def test_a_run_reaches_every_place(tmp_path, capsys):
    records = Records(tmp_path, CONFIG)
    records.start({"device": "cpu, 2 threads: no CUDA device"})
    records.message("compiling ...")
    records.log(100, {"train/return": 1.5, "perf/env_steps_per_s": 1.234567e6, "loss/policy": float("nan")})
    records.log(3_000_000_000, {"train/return": 2.5, "eval/return": float("-inf")})
    records.finish({"train/return": 487.3123, "env_steps": 12_345_678, "wall_s": 187.2, "best": "step_1.ckpt"}, "finished")
    records.close()
    records.close()

    rows = metrics(tmp_path)
    assert [row["env_steps"] for row in rows] == [100, 3_000_000_000]
    assert rows[0]["train/return"] == 1.5
    assert rows[0]["loss/policy"] is None
    assert rows[1]["eval/return"] is None
    assert 0 <= rows[0]["wall_s"] <= rows[1]["wall_s"]

    assert scalars(tmp_path, "train/return") == [(100, 1.5), (3_000_000_000, 2.5)]

    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "cartpole_ppo on cpu, 2 threads: no CUDA device"
    assert lines[1] == "compiling ..."
    assert "env_steps/s=1.23M return=1.500" in lines[2]
    assert "\x1b" not in out
    for part in ("finished", "487.3", "12.3 M", "3:07", "step_1.ckpt"):
        assert part in out
    assert "487.31" not in out
    assert lines[-1] == str(tmp_path)


def test_the_summary_is_in_place_of_the_live_view(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    records = Records(tmp_path, CONFIG, live=True)
    records.start({"device": "cpu"})
    records.log(100, {"train/return": 1.5})
    records.finish({"train/return": 2.0}, "solved")
    records.close()
    out, err = capsys.readouterr()
    assert err == ""
    assert out.index("\x1b[?25l") < out.index("train return") < out.index("\x1b[?25h") < out.index("solved")
    assert out.rindex("train return") < out.rindex("\x1b[2K") < out.index("solved")  # the view is erased last


def test_hparams_and_scalars_share_an_event_file_with_one_head(tmp_path):
    records = Records(tmp_path, CONFIG)
    records.start({})
    records.log(1, {"train/return": 1.0})
    records.log(2, {"train/return": 1.0})
    records.finish({}, "failed")
    records.close()
    (file,) = tmp_path.glob("**/events.out.tfevents.*")
    contents = [event.WhichOneof("what") for event in EventFileLoader(str(file)).Load()]
    assert contents == ["file_version", *["summary"] * 5]

    plugin = events(tmp_path).PluginTagToContent(metadata.PLUGIN_NAME)
    experiment = metadata.parse_experiment_plugin_data(plugin[metadata.EXPERIMENT_TAG])
    assert [metric.name.tag for metric in experiment.metric_infos] == ["train/return", "eval/return", "perf/env_steps_per_s"]
    session = metadata.parse_session_start_info_plugin_data(plugin[metadata.SESSION_START_INFO_TAG])
    assert session.group_name == tmp_path.name
    assert session.hparams["agent.lr"].number_value == 1e-4
    assert session.hparams["agent.hidden"].string_value == "[64, 64]"
    assert session.hparams["agent.normalise"].bool_value is True
    assert "max_minutes" not in session.hparams
    assert metadata.parse_session_end_info_plugin_data(plugin[metadata.SESSION_END_INFO_TAG]).status == 2  # failure


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_told_once_and_rows_come_back_with_the_space(tmp_path, capsys, monkeypatch):
    records = Records(tmp_path, CONFIG)
    records.start({})
    records.log(1, {"train/return": 1.0})

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        records.log(2, {"train/return": 2.0})
        records.log(3, {"train/return": 3.0})
    records.log(4, {"train/return": 4.0})
    records.close()
    warnings = capsys.readouterr().err.splitlines()
    assert [warning.split(":")[1].strip() for warning in warnings] == ["metrics.jsonl", "TensorBoard"]
    assert all("No space left on device" in warning for warning in warnings)
    assert [row["env_steps"] for row in metrics(tmp_path)] == [1, 4]
    assert [step for step, _ in scalars(tmp_path, "train/return")] == [1, 4]


def test_a_disk_full_from_the_start_loses_no_hparams(tmp_path, monkeypatch):
    records = Records(tmp_path, CONFIG)
    with monkeypatch.context() as broken:
        broken.setattr(os, "open", full)
        records.start({})
        records.log(1, {"train/return": 1.0})
    records.log(2, {"train/return": 2.0})
    records.close()
    assert metadata.SESSION_START_INFO_TAG in events(tmp_path).PluginTagToContent(metadata.PLUGIN_NAME)
    assert [row["env_steps"] for row in metrics(tmp_path)] == [2]


def test_a_vanished_folder_and_a_closed_terminal_do_not_stop_a_run(tmp_path, capsys, monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        flush = write

        def isatty(self):
            return False

    records = Records(tmp_path / "gone", CONFIG)
    monkeypatch.setattr(sys, "stdout", Closed())
    records.start({})
    records.log(1, {"train/return": 1.0})
    records.finish({"train/return": 1.0}, "finished")
    records.close()
    monkeypatch.undo()
    warned = [line.split(":")[1].strip() for line in capsys.readouterr().err.splitlines()]
    assert sorted(warned) == ["TensorBoard", "metrics.jsonl", "terminal"]


def test_only_rows_of_numbers_within_limits_are_read(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    long = "1" * 400
    none = ("[1]", '"x"', f'"{"x" * 3_000_000}"', long, f"{long}.0", "NaN", "true", '4, "wall_s": null', '5, "env_steps": -1')
    written = ("1", '2, "b": null', *none, "3", "null]", long)
    rows = "".join(f'{{"env_steps": 1, "wall_s": 1, "a": {value}}}\n' for value in written)
    path.write_bytes(f'{"[" * 100_000}\n{{"a": 0}}\n'.encode() + b"\xff\n" + rows.encode() + b'{"a')
    assert [row["a"] for row in read_rows(path)] == [1, 2, 3] and next(last_rows(path))["a"] == 3
    assert read_rows(path, "a".__eq__)[0] == {"a": 1.0}
    for limit, most in (("MAX_BYTES", 1000), ("MAX_LINES", 5), ("MAX_VALUES", 5)):
        with monkeypatch.context() as patch, pytest.raises(UserError, match=r"metrics\.jsonl"):
            patch.setattr(jsonl, limit, most)
            read_rows(path)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_a_sparse_file_takes_no_memory(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\n')
    os.truncate(path, 1 << 33)
    script = (
        "import resource, sys; from pathlib import Path; from warprun.runs.records.jsonl import JsonLines, last_rows\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "path = Path(sys.argv[1]); assert not list(last_rows(path)); JsonLines(path.parent, 1 << 34)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], timeout=60).returncode == 0


def test_a_file_that_is_too_short_continues_after_its_last_whole_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n' + "x" * 3_000_000)
    assert JsonLines(tmp_path, 1 << 34).files() == {"metrics.jsonl": 18}


def test_a_failed_write_leaves_no_half_record(tmp_path, monkeypatch):
    path = tmp_path / "log"
    file = Appender(path)
    file.write(b"one\n")
    real = os.pwrite

    def full(handle, data, offset):
        if len(data) < 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data[:6], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        file.write(b"longer than the next\n")
    assert path.read_bytes() == b"one\nlonger than the ne"
    monkeypatch.undo()
    file.write(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_links_and_pipes_are_not_written_to(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "log").symlink_to(precious)
    os.mkfifo(tmp_path / "pipe")
    for name in ("log", "pipe"):
        with pytest.raises(OSError, match=name):
            Appender(tmp_path / name).write(b"one\n")
        with pytest.raises(OSError, match=name):
            cut(tmp_path / name, 1)
    assert precious.read_text() == "mine"
    cut(precious, 2)
    assert precious.read_text() == "mi"
