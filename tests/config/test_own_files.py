"""What is said of config files of the user."""

from pathlib import Path

import pytest

from warprun.config.compose import compose, note_on_tuned
from warprun.errors import UserError


def test_a_file_that_takes_the_place_of_a_shipped_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "whose place" not in str(note_on_tuned(compose(["env=cartpole", "agent=ppo"])))
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "cartpole.yaml").write_text("name: cartpole\nmodule: warprun.envs.pendulum\n")
    note = str(note_on_tuned(compose(["env=cartpole", "agent=ppo"])))
    assert note.endswith("; they were tuned for warprun's own cartpole, whose place conf/env/cartpole.yaml takes")


def test_a_name_that_is_not_found_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"unknown environment 'mine'.*; own files: no folder conf in \.$"):
        compose(["env=mine"])
    (tmp_path / "conf").mkdir()
    with pytest.raises(UserError, match=r"unknown environment 'mine'.*; own files: conf/env$"):
        compose(["env=mine"])
