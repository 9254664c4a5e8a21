"""Configs of environments that are read without Hydra are those that Hydra composes."""

from pathlib import Path

import pytest

from warprun.config import environments
from warprun.config.compose import compose_environment
from warprun.config.environments import environment_config, environment_names
from warprun.errors import UserError


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's environments."""
    folder = tmp_path / "conf" / "env"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("name", environment_names())
def test_the_files_of_warprun(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    composed = compose_environment(name)
    monkeypatch.setattr(environments, "_composed", lambda name: pytest.fail("Hydra composed it"))
    assert environment_config(name) == composed


PLAIN = {
    "numbers": "name: mine\nmodule: ./mine.py\nsolved_at: 1e2\ntime_limit: 7\nparams: {a: 1e-3, b: [1, 2], c: false}\n",
    "one of warprun's own": "name: cartpole\nmodule: warprun.envs.cartpole\nparams:\n  gravity: 1\n",
}
COMPOSED = {
    "defaults": "defaults: [cartpole, _self_]\nsolved_at: 3\n",
    "a reference": "name: mine\nmodule: ./${.name}.py\n",
    "a reference in escapes": 'name: mine\nmodule: "./\\x24{.name}.py"\n',
    "a package": "# @package _global_\nenv: {name: mine, module: ./mine.py}\n",
}


@pytest.mark.parametrize("text", [*PLAIN.values(), *COMPOSED.values()], ids=[*PLAIN, *COMPOSED])
def test_files_of_a_user(own: Path, text: str) -> None:
    (own / "mine.yaml").write_text(text)
    assert environment_config("mine") == compose_environment("mine")
    assert (environments._read("mine") is None) == (text in COMPOSED.values())


MISTAKES = {
    "name: mine\nmodul: ./mine.py\n": "in env/mine.yaml: unknown key 'env.modul'",
    "name: mine\nmodule: ./mine.py\ntime_limit: soon\n": "env.time_limit must be a whole number, not 'soon'",
    "- 1\n": "mine.yaml:1: it must hold keys with values",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_a_file_is_told_as_hydra_tells_it(own: Path, text: str) -> None:
    (own / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=MISTAKES[text]):
        environment_config("mine")


def test_the_file_of_a_user_counts_before_that_of_warprun(own: Path) -> None:
    (own / "cartpole.yaml").write_text("name: mine\nmodule: ./mine.py\n")
    assert environment_config("cartpole").name == "mine"


def test_a_name_without_a_file() -> None:
    with pytest.raises(UserError, match=r"unknown environment 'cartpol'; did you mean 'cartpole'\?"):
        environment_config("cartpol")
