"""Every environment that warprun ships: train, eval, play, export, several processes and check. tests/interop has other libraries."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import warprun
from tests.parallel.ranks import start
from tests.selection import few
from tests.words import words
from warprun.cli import main as cli
from warprun.config.registry import options
from warprun.errors import UserError
from warprun.interop.registration import IDS

FIRST = "cartpole"
MISSING = [library for library in ("gymnax", "brax", "jumanji") if not find_spec(library)]
NAMES = [FIRST, *(name for name in options("env") if name not in (FIRST, *MISSING))]
SHORT = ["env.time_limit=8"]
BY_NAME = ["env.id=CartPole-v1"]
SETTINGS = {
    "gymnasium": BY_NAME,
    "gymnax": BY_NAME,
    "jumanji": ["env.id=TSP-v1"],
    "brax": ["env.id=inverted_pendulum", "env.kwargs.backend=spring"],
    "covid": SHORT,
    "tag_continuous": SHORT,
    "tag_gridworld": SHORT,
}
"""What an environment needs beside its name; those of many actors have short episodes."""
EXPORTS = {"gray_scott": "pt2"}
"""Format of policies that are more than layers: tuned ones of these have convolutions."""
TINY = words("""
    n_envs=4 total_steps=64 agent.horizon=4 agent.minibatches=1 eval.episodes=2 eval.final_episodes=2
    concurrency.threads=1 device=cpu log.live=false log.tensorboard=false
""")
every = pytest.mark.parametrize("name", NAMES)
some = pytest.mark.parametrize("name", few(NAMES, "cartpole", "heat_equation", "kuramoto_sivashinsky", "tag_gridworld"))


def environment(name: str) -> list[str]:
    return [f"env={name}", *SETTINGS.get(name, [])]


@pytest.mark.by_default(1)
@every
def test_train_eval_play_and_export(name: str, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert cli.run([*environment(name), *TINY, f"run_dir={run}"]) == 0
    assert cli.run(["eval", run, "episodes=2"]) == 0
    assert cli.run(["play", run, f"record={tmp_path / 'steps.csv'}"]) == 0
    assert cli.run(["export", run, str(tmp_path / f"policy.{EXPORTS.get(name, 'npz')}")]) == 0
    assert cli.run(["play", *environment(name), "policy=random"]) == 0


@pytest.mark.by_default(0)
@pytest.mark.parametrize(("mode", "processes"), [("ddp", 2), ("async", 3)])
@some
def test_several_processes(name: str, mode: str, processes: int, tmp_path: Path) -> None:
    untuned = ["tuned=none"] if mode == "async" else []  # tuned policies can have memory, which rollouts of actors do not carry
    concurrency = [f"concurrency={mode}", f"concurrency.processes={processes}"]
    done = start(1, *environment(name), *TINY, *untuned, *concurrency, "run_dir=mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.by_default(0)
@pytest.mark.parametrize("registered", few(IDS, "warprun/CartPole-v0"))
def test_in_processes_of_gymnasium(registered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = ["env=gymnasium", f"env.id={registered}", "env.register=[warprun.interop.registration]"]
    assert cli.run([*env, *TINY, "concurrency.workers=2"]) == 0


@pytest.mark.by_default(0)
@some
def test_check(name: str) -> None:
    assert cli.run(["check", *environment(name), "device=cpu"]) == 0


@pytest.mark.parametrize("make", [warprun.make_vec, warprun.make_sb3, warprun.make_parallel])
def test_other_libraries_refuse_what_is_not_made_of_kernels(make: Callable[..., object]) -> None:
    with pytest.raises(UserError, match="is not made of kernel functions"):
        make("heat_equation")
