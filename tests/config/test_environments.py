"""Config files: environments read without Hydra are those that it composes, files in the place of shipped ones."""

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.batches import Walkers
from tests.simulation.external.clock import Walk
from warprun.config import environments
from warprun.config.compose import compose, compose_environment, note_on_files, note_on_tuned
from warprun.config.environments import environment_config
from warprun.config.external import External
from warprun.config.registry import kind_of, options
from warprun.envs import cartpole
from warprun.errors import UserError
from warprun.simulation.external.registered import Registered


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's environments."""
    folder = tmp_path / "conf" / "env"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("name", options("env"))
def test_the_files_of_warprun(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    composed = compose_environment(name)
    monkeypatch.setattr("warprun.config.compose.compose_environment", lambda name: pytest.fail("Hydra composed it"))
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


OWN = {"env": "name: cartpole\nmodule: warprun.envs.pendulum\n", "tuned": "# @package _global_\nn_envs: 64\n"}


@pytest.mark.parametrize(
    ("agent", "files", "untried"),
    [
        ("ppo", "", False),
        ("ppo", "conf/env/cartpole.yaml", True),
        ("ppo", "conf/env/cartpole.yaml conf/tuned/cartpole_ppo.yaml", False),
        ("td3", "conf/env/cartpole.yaml", False),
        ("ppo", "conf/env/mine.yaml", False),
    ],
)
def test_a_file_in_the_place_of_a_shipped_one_is_named(own: Path, agent: str, files: str, untried: bool) -> None:
    for file in map(Path, files.split()):
        file.parent.mkdir(exist_ok=True)
        file.write_text(OWN[file.parent.name])
    config = compose(["env=cartpole", f"agent={agent}"])
    named = f"in the place of warprun's own of the same name: {files}" if "cartpole" in files else None
    assert note_on_files(config) == named
    assert config.env.module == f"warprun.envs.{'pendulum' if named else 'cartpole'}"
    assert ("; they were not tuned for conf/env/cartpole.yaml" in str(note_on_tuned(config))) == untried


def test_a_name_that_is_not_found_says_where_it_was_looked_for(own: Path) -> None:
    with pytest.raises(UserError, match=r"unknown environment 'mine'.*; own files: conf/env$"):
        compose(["env=mine"])
    shutil.rmtree("conf")
    with pytest.raises(UserError, match=r"unknown environment 'mine'.*; own files: no folder conf in \.$"):
        compose(["env=mine"])


def parallel(comm: object) -> None:
    """Stands for the maker of a parallel program."""


class Factory:
    spec: Any = None

    def make_simulator(self) -> None:
        pass


KINDS: dict[str, tuple[Any, ...]] = {
    "batch": (Walkers, lambda n_envs: None, type("Resets", (), {"reset": lambda self, seed, mask: None})),
    "gymnasium": (Walk, Registered(), parallel),
    "functions": (cartpole.environment(),),
    "simulators": (Factory(),),
    "maker": (cartpole.environment, lambda: None, functools.partial(Walk)),
    "": (Factory, Walk(), 3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_an_environment(kind: str) -> None:
    assert [kind_of(made) or "" for made in KINDS[kind]] == [kind] * len(KINDS[kind])
    assert kind_of(lambda: None, External(vector=True)) == "gymnasium"
