"""Files that are complete after a crash, in folders that somebody else may have made."""

import os
from pathlib import Path

import pytest

from warprun.files import write_atomic


def test_a_temporary_file_that_is_a_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    for make in (os.symlink, os.link):
        make(tmp_path / "precious", tmp_path / "status.json.tmp")
        write_atomic(tmp_path / "status.json", b"{}")
        assert (tmp_path / "precious").read_text() == "mine"
        assert not (tmp_path / "status.json").is_symlink() and (tmp_path / "status.json").read_text() == "{}"


def test_a_temporary_file_of_a_crash_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "status.json.tmp").write_text("unfinished and longer")
    write_atomic(tmp_path / "status.json", b"{}")
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
    assert (tmp_path / "status.json").stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_a_file_that_cannot_be_replaced_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "status.json.tmp").mkdir()
    (tmp_path / "status.json").write_text("old")
    with pytest.raises(OSError, match=r"status\.json"):
        write_atomic(tmp_path / "status.json", b"{}")
    assert (tmp_path / "status.json").read_text() == "old"


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
