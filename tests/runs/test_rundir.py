import json
import os
import re
from pathlib import Path

import pytest

from warprun.config.schema import CheckpointConfig
from warprun.errors import TrainingFailed, UserError
from warprun.files import write_atomic
from warprun.runs import rundir
from warprun.runs.saver import Saver


def test_a_clash_of_names_is_tried_again(tmp_path, monkeypatch):
    tokens = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr(rundir.secrets, "token_hex", lambda _: next(tokens))

    class Frozen(rundir.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 20, 10, 15)

    monkeypatch.setattr(rundir, "datetime", Frozen)
    names = [rundir.create(tmp_path, "run").folder.name for _ in range(2)]
    assert names == ["run_20261120-101500_aaaaaa", "run_20261120-101500_bbbbbb"]


@pytest.mark.parametrize(("name", "label"), [("a/b c", "a-b-c"), ("../../x", "x"), ("", "run"), ("..", "run"), ("größe", "gr-e")])
def test_any_name_makes_one_folder_in_the_root(tmp_path, name, label):
    folder = rundir.create(tmp_path, name).folder
    assert folder.parent == tmp_path
    assert re.fullmatch(rf"{label}_\d{{8}}-\d{{6}}_[0-9a-f]{{6}}", folder.name)


def test_claim_takes_new_and_empty_folders_only(tmp_path):
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        held = rundir.claim(folder)
        assert held.folder == folder
        with pytest.raises(UserError, match="another process is training in"):
            rundir.claim(folder)
        held.release()
    (folder / "config.yaml").touch()
    with pytest.raises(UserError, match="not empty"):
        rundir.claim(folder)


def test_latest_is_the_run_that_started_last(tmp_path):
    with pytest.raises(UserError, match="no run in"):
        rundir.latest(tmp_path / "missing")
    old, new, no_run = (tmp_path / name for name in ("z", "a", "no_run"))
    for folder in (old, new, no_run):
        folder.mkdir()
    with pytest.raises(UserError, match="no run in"):
        rundir.latest(tmp_path)
    for place in ("sweeps/first", "second"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "plan.json").touch()
        with pytest.raises(UserError, match=f"no run in .*; name one of a sweep, such as those in {tmp_path / place}$"):
            rundir.latest(tmp_path)
    started = rundir.now()
    rundir.write_status(new, {"state": "running", "started": rundir.now()})
    rundir.write_status(old, {"state": "finished", "started": started})
    assert rundir.latest(tmp_path) == new


def test_versions_tell_software_hardware_and_command(tmp_path):
    found = rundir.versions()
    rundir.write_versions(tmp_path, found)
    assert json.loads((tmp_path / "versions.json").read_text()) == found
    assert found["torch"].startswith("2.")
    assert found["python"].startswith("3.")
    assert found["cores"] >= 1
    assert found["cpu"]
    assert found["command"]
    if (rundir.Path(rundir.__file__).parents[2] / ".git").exists():
        assert re.fullmatch(r"[0-9a-f]{40}\+?", found["commit"])


@pytest.mark.parametrize("started", ["2099-01-01T00:00:00", 20990101, None, {}])
def test_latest_leaves_out_a_run_whose_start_is_no_time(tmp_path, started):
    for name in ("good", "odd"):
        (tmp_path / name).mkdir()
    rundir.write_status(tmp_path / "odd", {"state": "finished", "started": started})
    with pytest.raises(UserError, match=r"status.json is damaged in odd"):
        rundir.latest(tmp_path)
    rundir.write_status(tmp_path / "good", {"state": "finished", "started": rundir.now()})
    assert rundir.latest(tmp_path) == tmp_path / "good"


# Files that are complete after a crash, in folders that somebody else may have made -----------------------------------


def test_a_temporary_file_that_is_a_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    for make in (os.symlink, os.link):
        make(tmp_path / "precious", tmp_path / "status.json.tmp")
        write_atomic(tmp_path / "status.json", b"{}")
        assert (tmp_path / "precious").read_text() == "mine"
        assert not (tmp_path / "status.json").is_symlink() and (tmp_path / "status.json").read_text() == "{}"


def test_a_working_folder_that_code_of_the_user_changes_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    held = rundir.Held.new(Path("run"))
    saver = Saver(held, CheckpointConfig(), print)
    saver.refuse_removed_folder()
    monkeypatch.chdir("/")
    with pytest.raises(TrainingFailed, match="changed the working folder to /, and run is not there: let it change back, or give run_dir="):
        saver.refuse_removed_folder()
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(TrainingFailed, match="the run folder run was removed during the run"):
        saver.refuse_removed_folder()
    held.release()
