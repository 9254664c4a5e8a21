import errno
import os

import pytest

from warprun.runtime.records.appender import Appender


def test_cuts_off_what_lies_beyond_the_position(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\nhalf")
    file = Appender(path, 4)
    file.write(b"new\n")
    file.close()
    assert path.read_bytes() == b"one\nnew\n"
    assert file.position == 8


def test_does_not_fill_a_file_that_lost_its_end_with_zeros(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    Appender(path, 100).write(b"new\n")
    assert path.read_bytes() == b"one\nnew\n"


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
