"""What is said of config files of the user."""

from pathlib import Path

import pytest

from warprun.config.compose import compose, note_on_files, note_on_tuned
from warprun.errors import UserError

OWN = {"env": "name: cartpole\nmodule: warprun.envs.pendulum\n", "tuned": "# @package _global_\nn_envs: 64\n"}


@pytest.mark.parametrize(
    ("agent", "files", "told", "untried"),
    [
        ("ppo", [], None, False),
        ("ppo", ["env/cartpole.yaml"], "conf/env/cartpole.yaml", True),
        ("ppo", ["env/cartpole.yaml", "tuned/cartpole_ppo.yaml"], "conf/env/cartpole.yaml conf/tuned/cartpole_ppo.yaml", False),
        ("td3", ["env/cartpole.yaml"], "conf/env/cartpole.yaml", False),
        ("ppo", ["env/mine.yaml"], None, False),
    ],
)
def test_a_file_in_the_place_of_a_shipped_one_is_named(agent, files, told, untried, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in files:
        (tmp_path / "conf" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / file).write_text(OWN[file.partition("/")[0]])
    config = compose(["env=cartpole", f"agent={agent}"])
    assert note_on_files(config) == (None if told is None else f"in the place of warprun's own of the same name: {told}")
    assert ("; they were not tuned for conf/env/cartpole.yaml" in str(note_on_tuned(config))) == untried


def test_a_name_that_is_not_found_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"unknown environment 'mine'.*; own files: no folder conf in \.$"):
        compose(["env=mine"])
    (tmp_path / "conf").mkdir()
    with pytest.raises(UserError, match=r"unknown environment 'mine'.*; own files: conf/env$"):
        compose(["env=mine"])
