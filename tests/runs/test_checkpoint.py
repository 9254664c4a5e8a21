import errno
import io
import json
import multiprocessing
import os
import random
import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from warprun.config.cadence import Cadence, Moment, Recurring
from warprun.config.schema import CheckpointConfig
from warprun.errors import UserError
from warprun.files import all_to_disk, to_disk
from warprun.runs import checkpoint, rundir
from warprun.runs.measured import Notes
from warprun.runs.rundir import Held
from warprun.runs.saver import SHARE, Saver


class Crash(BaseException):
    """The machine stops here: no `except OSError` cleans up."""


def put(folder: Path, env_steps: int, value: float | None = None, **kwargs: int) -> Path:
    tensors = {"w": torch.full((100,), float(env_steps if value is None else value))}
    return checkpoint.save(folder, env_steps, tensors, {"n": env_steps}, **kwargs)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_everything_comes_back_as_it_was(tmp_path):
    tensors = {
        "policy/w": torch.randn(3, 4),
        "f64": torch.randn(2, dtype=torch.float64),
        "i32": torch.arange(3, dtype=torch.int32),
        "i64": torch.tensor([2**62, -1]),
        "u8": torch.arange(4, dtype=torch.uint8),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 5),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "grad": torch.ones(2, requires_grad=True),
        "file": torch.tensor(float("nan")),  # the name of an argument of np.savez
        "header": torch.ones(1),
        "allow_pickle": torch.ones(1),
    }
    arrays = {"array": np.arange(3, dtype=np.float32), "number": np.array(7, dtype=np.int64), "turned2": np.arange(6).reshape(2, 3).T}
    meta = {"mark": [1, 2.5, None], "text": "ü", "nested": {"a": True}}
    path = checkpoint.save(tmp_path, 1_234_567, {**tensors, **arrays}, meta)
    assert path.name == "step_000001234567.ckpt"

    loaded = checkpoint.load(tmp_path)
    assert (loaded.env_steps, loaded.meta, loaded.path) == (1_234_567, meta, path)
    assert list(loaded.tensors) == [*tensors, *arrays]
    for name, tensor in (tensors | {name: torch.from_numpy(array) for name, array in arrays.items()}).items():
        got = loaded.tensors[name]
        assert got.dtype == tensor.dtype
        assert got.shape == tensor.shape
        assert got.is_contiguous()
        assert torch.equal(got.nan_to_num(), tensor.detach().nan_to_num())
    loaded.tensors["policy/w"].zero_()  # writable


def test_keeps_the_last_two(tmp_path):
    for env_steps in (100, 200, 300):
        put(tmp_path, env_steps)
    assert files(tmp_path) == ["manifest.json", "step_000000000200.ckpt", "step_000000000300.ckpt"]
    manifest = json.loads((tmp_path / "checkpoints" / "manifest.json").read_text())
    assert [entry["env_steps"] for entry in manifest] == [200, 300]
    assert checkpoint.load(tmp_path).env_steps == 300
    put(tmp_path, 400, keep=1)
    assert files(tmp_path) == ["manifest.json", "step_000000000400.ckpt"]
    with pytest.raises(ValueError, match="keep"):
        put(tmp_path, 500, keep=0)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "flipped": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": Path.unlink,
    "swapped": lambda path: path.write_bytes((path.parent / "step_000000000100.ckpt").read_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_falls_back_to_the_one_before_with_one_line(tmp_path, capsys, damage):
    put(tmp_path, 100)
    damage(put(tmp_path, 200))
    assert checkpoint.load(tmp_path).env_steps == 100
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert "step_000000000200.ckpt" in warnings[0]


def test_a_run_that_fell_back_keeps_what_it_fell_back_to(tmp_path):
    put(tmp_path, 100)
    for env_steps in (200, 150):
        put(tmp_path, env_steps).write_bytes(b"")
        assert checkpoint.load(tmp_path).env_steps == 100


@pytest.mark.parametrize(
    ("state", "line", "said"),
    [
        ("running", checkpoint.LAST, "checkpoint: its run goes on and has saved none yet: wait"),
        ("running", checkpoint.BEST, "best checkpoint: its run goes on and has none yet: it is saved after an evaluation"),
        ("failed", checkpoint.LAST, "checkpoint: its run failed before it saved one; begin it again"),
        ("killed", checkpoint.LAST, "checkpoint: its run was killed before it saved one; begin it again"),
        ("finished", checkpoint.BEST, "best checkpoint: its run made no evaluation"),
        (None, checkpoint.LAST, "checkpoint: the folder checkpoints is missing or empty"),
        ("damaged", checkpoint.LAST, "step_000000000100.ckpt is damaged"),
    ],
)
def test_why_a_run_has_no_checkpoint_is_told_in_one_line(state, line, said, tmp_path, monkeypatch):
    if state in ("running", "failed", "killed", "finished"):
        rundir.write_status(tmp_path, {"state": "running" if state == "killed" else state, "started": rundir.now()})
    if state in ("finished", "damaged"):
        path = put(tmp_path, 100)
        if state == "damaged":
            flip(path)
    monkeypatch.setattr(rundir, "is_running", lambda folder: state == "running")
    with pytest.raises(UserError) as error:
        checkpoint.load(tmp_path, line)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("content", [None, "", "[{", "[1]", '[{"file": 1}]', "{}"])
def test_a_lost_manifest_costs_no_checkpoint(tmp_path, capsys, content):
    put(tmp_path, 100)
    put(tmp_path, 200)
    manifest = tmp_path / "checkpoints" / "manifest.json"
    if content is None:
        manifest.unlink()
    else:
        manifest.write_text(content)
    assert checkpoint.load(tmp_path).env_steps == 200
    assert len(capsys.readouterr().err.splitlines()) == 1
    flip(tmp_path / "checkpoints" / "step_000000000200.ckpt")
    assert checkpoint.load(tmp_path).env_steps == 100
    put(tmp_path, 300)
    capsys.readouterr()
    assert checkpoint.load(tmp_path).env_steps == 300
    assert capsys.readouterr().err == ""
    (*others, entry) = json.loads(manifest.read_text())
    manifest.write_text(json.dumps([*others, entry, entry | {"file": "step_\x1b[2J.ckpt"}]))
    assert checkpoint.load(tmp_path).env_steps == 300
    assert r"step_\x1b[2J.ckpt" in capsys.readouterr().err


def test_without_a_manifest_no_altered_byte_gets_through(tmp_path, capsys):
    path = checkpoint.save(tmp_path, 7, {"w": torch.arange(8.0), "b": torch.tensor(2)}, {"n": 1})
    (path.parent / "manifest.json").unlink()
    data, rng = path.read_bytes(), random.Random(0)
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ rng.randrange(1, 256)]) + data[position + 1 :])
        try:
            loaded = checkpoint.load(tmp_path)
        except UserError:
            continue
        # Some bytes carry nothing, such as time stamps.
        assert (loaded.env_steps, loaded.meta) == (7, {"n": 1})
        assert torch.equal(loaded.tensors["w"], torch.arange(8.0))
        assert loaded.tensors["b"] == 2


@pytest.mark.parametrize("other", [1, checkpoint.FORMAT + 1])
def test_other_formats_are_refused(tmp_path, monkeypatch, other):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", other)
        put(tmp_path, 100)
    with pytest.raises(UserError, match=f"format {other}"):
        checkpoint.load(tmp_path)


class HalfFile(io.FileIO):
    """A file whose every write consists of two."""

    faults: "Faults"

    def write(self, data):
        super().write(data[: len(data) // 2])
        self.faults.tick()
        return super().write(data[len(data) // 2 :])


class Faults:
    """Count the operations that touch the disk and fail before one of them, or amid a write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException) -> None:
        self.left, self.error = at, error
        for owner, name in ((os, "fsync"), (os, "replace"), (Path, "unlink")):
            monkeypatch.setattr(owner, name, self._before(getattr(owner, name)))
        monkeypatch.setattr(HalfFile, "faults", self, raising=False)
        monkeypatch.setattr("warprun.files.open", self._before(HalfFile), raising=False)

    def tick(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise self.error

    def _before(self, operation):
        def run(*args, **kwargs):
            self.tick()
            return operation(*args, **kwargs)

        return run


STAGES = {0: 8, 1: 9, 2: 14}
"""Earlier checkpoints -> operations: two files x (removal of a left-over, open, write, rename), the fsync of a manifest that replaces
one, and if a checkpoint is removed, four to the disk and the removal."""


@pytest.mark.parametrize("error", [Crash(), OSError(errno.ENOSPC, "No space left on device")], ids=["crash", "disk full"])
@pytest.mark.parametrize("steps", [(100, 200, 300), (100, 100, 100)], ids=["new steps", "same step"])
@pytest.mark.parametrize("earlier", [0, 1, 2])
def test_a_crash_at_any_stage_leaves_a_checkpoint(tmp_path, capsys, earlier, steps, error):
    for stage in range(STAGES[earlier] + 1):
        crash(tmp_path / str(stage), capsys, stage, earlier, steps, error)


def crash(folder: Path, capsys, stage: int, earlier: int, steps: tuple[int, ...], error: BaseException) -> None:
    """Fail at a stage of a save, and save and load after that."""
    folder.mkdir()
    for number in range(earlier):
        put(folder, steps[number], value=number)
    with pytest.MonkeyPatch.context() as patch:
        Faults(patch, stage, error)
        try:
            put(folder, steps[2], value=2)
            assert stage == STAGES[earlier]
        except type(error):
            pass
    try:
        assert float(checkpoint.load(folder).tensors["w"][0]) in {earlier - 1.0, 2.0}
    except UserError:
        assert earlier == 0
    assert capsys.readouterr().err == "" or not earlier  # no hash fails on the way
    put(folder, 400, value=4)
    assert checkpoint.load(folder).tensors["w"][0] == 4
    listed = {entry["file"] for entry in json.loads((folder / "checkpoints" / "manifest.json").read_text())}
    assert set(files(folder)) == listed | {"manifest.json"}


def test_the_stages_are_all_of_them(tmp_path, monkeypatch):
    put(tmp_path, 100)
    put(tmp_path, 200)
    (tmp_path / "checkpoints" / "step_000000000150.ckpt.tmp").touch()
    faults = Faults(monkeypatch, STAGES[2] + 1, Crash())  # and the removal of a left-over
    put(tmp_path, 300)
    assert faults.left == 0


def test_older_checkpoints_go_when_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    put(tmp_path, 100)
    put(tmp_path, 200)
    calls: list[str] = []
    fsync, replace, unlink = os.fsync, os.replace, Path.unlink

    def synced(handle: int) -> None:
        calls.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")
        fsync(handle)

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        if path.exists():
            calls.append(f"remove {path.name}")
        unlink(path, missing_ok)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda source, target: (calls.append(f"rename {target.name}"), replace(source, target)))
    monkeypatch.setattr(Path, "unlink", unlinked)
    put(tmp_path, 300)
    names = [f"step_{n:012}.ckpt" for n in (100, 200, 300)]
    assert calls[:3] == [f"rename {names[2]}", "sync manifest.json.tmp", "rename manifest.json"]
    assert {f"sync {name}" for name in ("checkpoints", "manifest.json", *names[1:])} == set(calls[3:-1])
    assert calls[-1] == f"remove {names[0]}"


def test_what_is_no_file_of_a_run_is_not_written_to_the_disk(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    put(folder, 100)
    (folder / "link").symlink_to(tmp_path / "nowhere")
    (folder / "elsewhere").symlink_to("/proc")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
        all_to_disk(folder)
    (tmp_path / "named").symlink_to(folder)
    all_to_disk(tmp_path / "named")


def test_the_disk_is_written_to_without_threads_where_there_are_none(tmp_path, monkeypatch):
    class Refused(ThreadPoolExecutor):
        def submit(self, *arguments, **named):
            raise RuntimeError("can't start new thread")

    calls = []
    monkeypatch.setattr("warprun.files.ThreadPoolExecutor", Refused)
    monkeypatch.setattr(os, "fsync", calls.append)
    to_disk([tmp_path, tmp_path / "missing"])
    assert len(calls) == 1


# What checkpoints cost, and that their share of the time of a run is limited ------------------------------------------


class Clock:
    """Time as the saver sees it, in s."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_the_next_checkpoint_waits_until_its_share_of_the_time_is_kept(tmp_path, monkeypatch):
    clock = Clock()

    def write(*arguments: object) -> None:
        clock.now += 3.0

    monkeypatch.setattr("warprun.runs.saver.time", clock)
    monkeypatch.setattr(checkpoint, "save", write)
    saver = Saver(Held(tmp_path), CheckpointConfig(), print)
    by_time = Recurring(Cadence("seconds", 1.0), Moment(0.0, 0, 0, 0.0)), Notes(print, [])
    assert saver.is_affordable(*by_time)
    saver.save(1, {}, {})
    clock.now += 3.0 / SHARE - 0.01
    assert not saver.is_affordable(*by_time)
    clock.now += 0.02
    assert saver.is_affordable(*by_time)


@pytest.mark.reliability
@pytest.mark.parametrize(("megabytes", "limit_s"), [(0.1, 0.1), (33, 0.6), (330, 6.0)])
def test_what_a_checkpoint_costs(tmp_path, megabytes, limit_s):
    state = {"replay": torch.rand(int(megabytes * 1e6 / 4)), "network": torch.rand(64, 64)}
    taken = []
    for step in range(5):
        began = time.perf_counter()
        checkpoint.save(tmp_path, step, state, {})
        taken.append(time.perf_counter() - began)
    print(f"{megabytes} MB: {statistics.median(taken):.3f} s")
    assert statistics.median(taken) < limit_s


def test_a_forked_process_has_threads_for_the_disk_of_its_own(tmp_path):
    to_disk([tmp_path])  # this process has them now
    child = multiprocessing.get_context("fork").Process(target=to_disk, args=([tmp_path],))
    child.start()
    child.join(30)
    try:
        assert child.exitcode == 0
    finally:
        child.kill()


def test_large_arrays_arrive_in_pieces(tmp_path):
    whole = torch.arange(3 * checkpoint.PIECE_BYTES // 4 + 1, dtype=torch.int32)
    stored = {"whole": whole, "turned": whole[:12].reshape(3, 4).T, "empty": torch.zeros(0, 3), "one": torch.tensor(True)}
    checkpoint.save(tmp_path, 1, stored, {})
    loaded = checkpoint.load(tmp_path).tensors
    assert all(torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype for name, tensor in stored.items())
