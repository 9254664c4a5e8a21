"""The key of a user and the seals of run folders."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warprun.algorithms import config_class
from warprun.config.schema import Config, EnvConfig
from warprun.errors import UserError
from warprun.runs import sealing
from warprun.runs.opening import open_config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder before its config.yaml is written."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "run" / "environment").mkdir(parents=True)
    (tmp_path / "run" / "environment" / "manifest.json").write_text("{}")
    return tmp_path / "run"


def write(folder: Path, config: bytes) -> None:
    (folder / "config.yaml").write_bytes(config)


def test_the_key_is_made_once_and_is_private(folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda n: sealing._make_key(), range(16)))
    assert made == {sealing.key_file().read_bytes()}
    path = sealing.key_file()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0
    assert [each.name for each in path.parent.iterdir()] == ["key"]
    key = path.read_bytes()
    assert len(key) == 32
    sealing.seal(folder, b"")
    assert path.read_bytes() == key


@pytest.mark.parametrize("damage", ["open", "short", "link", "folder"])
def test_a_key_that_others_can_read_or_that_is_damaged_is_refused(folder: Path, damage: str) -> None:
    sealing.seal(folder, b"x")
    write(folder, b"x")
    path = sealing.key_file()
    key = path.read_bytes()
    if damage == "open":
        path.chmod(0o644)
    elif damage == "short":
        path.write_bytes(key[:5])
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()
        else:
            path.symlink_to(folder / "config.yaml")
    with pytest.raises(UserError, match="key"):
        sealing.is_own(folder)
    told = sealing.seal(folder, b"x")
    assert told is not None and "key" in told and "trust=true" in told


def test_without_a_place_for_the_key_a_run_has_no_seal_and_says_so(folder: Path) -> None:
    (folder.parent / "home").write_text("")  # a file
    told = sealing.seal(folder, b"x")
    assert told is not None and told.startswith("the run folder has no seal") and "\n" not in told
    assert not (folder / "environment" / "seal").exists()
    write(folder, b"x")
    assert not sealing.is_own(folder)


def test_a_relative_config_folder_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sealing.key_file() == tmp_path / ".config" / "warprun" / "key"


def test_the_seal_before_stays_valid_until_the_config_is_replaced(folder: Path) -> None:
    assert sealing.seal(folder, b"seed: 1\n") is None
    write(folder, b"seed: 1\n")
    for seed in (2, 3):  # as resumes that were killed before they replaced config.yaml
        sealing.seal(folder, b"seed: %d\n" % seed)
        assert sealing.is_own(folder)
    write(folder, b"seed: 3\n")
    assert sealing.is_own(folder)
    # A folder of somebody else: its seals are not kept.
    (folder / "environment" / "seal").write_text("0" * 64)
    sealing.seal(folder, b"seed: 3\n")
    assert len((folder / "environment" / "seal").read_text().split()) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"register": ["antigravity"]}, "its env.register=['antigravity'] can run any code: read it, then add trust=true"),
        ({"kwargs": {"entry": "os:system"}}, "its env.kwargs={'entry': 'os:system'} can run any code: read it, then add trust=true"),
    ],
)
def test_modules_and_arguments_of_gymnasium_are_code(
    folder: Path, given: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "environment" / "manifest.json").unlink()
    plain = EnvConfig(name="gymnasium", module="warprun.envs.gymnasium", id="CartPole-v1")
    config = Config(agent=config_class("ppo")(), env=replace(plain, **given))
    with pytest.raises(UserError) as refused:
        open_config(folder, config, trusted=False)
    assert told in str(refused.value)
    assert open_config(folder, config, trusted=True).env.module == plain.module
    assert open_config(folder, replace(config, env=plain), trusted=False).env.module == plain.module
    monkeypatch.setattr("warprun.runs.opening.is_own", lambda folder: True)
    assert open_config(folder, config, trusted=False).env.module == plain.module
