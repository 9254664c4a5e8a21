import errno
import os

import pytest

from warprun.runs.records.jsonl import Appender, cut


def test_a_failed_write_leaves_no_half_record(tmp_path, monkeypatch):
    path = tmp_path / "log"
    file = Appender(path)
    file.write(b"one\n")
    real = os.pwrite

    def full(handle, data, offset):
        if len(data) < 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data[:2], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        file.write(b"lost\n")
    assert path.read_bytes() == b"one\nlo"
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
