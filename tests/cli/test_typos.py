"""Names and keys with one wrong character: the message suggests the right one."""

import random
import re
import string
import sys
import types

import pytest

from tests.cli.fuzzed import edited, setting_keys
from warprun.algorithms import AGENTS
from warprun.cli import main as cli
from warprun.config.registry import options
from warprun.errors import edits

LETTERS = string.ascii_lowercase + string.digits + "_"


WORDS = [("gama", "gamma", 1), ("hroizon", "horizon", 1), ("same", "same", 0), ("kitten", "sitting", 3)]


@pytest.mark.parametrize(("one", "other", "count"), WORDS)
def test_edits_between_two_words(one: str, other: str, count: int) -> None:
    """Neighbours that have changed places count as one."""
    assert edits(one, other) == edits(other, one) == count


def cases() -> list[tuple[list[str], str, str]]:
    """Return (arguments before it, the name or key, what stands after it) of everything that can be misspelt."""
    found = [(["env="], name, "") for name in options("env")] * 8 + [(["agent="], name, "") for name in options("agent")] * 8
    return found + [([f"agent={agent}", ""], key, "=1") for agent in AGENTS for key in setting_keys(agent)]


def suggested(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str | None:
    """Return the first suggestion for a command line; None if there is no error."""
    capsys.readouterr()
    if cli.run(arguments) == 0:
        return None
    match = re.search(r"did you mean '([^']+)'", capsys.readouterr().err)
    return match[1] if match else ""


def share_of_right_suggestions(count: int, seed: int, capsys: pytest.CaptureFixture[str]) -> float:
    """Return the share of `count` typos for which the right name is suggested first."""
    chance = random.Random(seed)
    known = cases()
    names = {name for _, name, _ in known} | set(options("env")) | set(options("agent"))
    right, missed = 0, []
    while right + len(missed) < count:
        (*before, prefix), name, after = chance.choice(known)
        typo = edited(name, chance, LETTERS)
        if typo in names:
            continue
        arguments = [*before, f"{prefix}{typo}{after}"]
        told = suggested(arguments, capsys)
        # Of a path the first wrong name is corrected; names below `env` that it does not know are options.
        fits = told and (told == name or name.startswith(f"{told}.") or name == f"env.{told}")
        right += bool(fits)
        if not fits:
            missed.append(f"{' '.join(arguments)} -> {told}")
    print("\n".join(missed))
    return right / count


@pytest.fixture
def nothing_trained(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "warprun.runs.train", types.SimpleNamespace(train=lambda config, crew=None: pytest.fail("trained")))
    monkeypatch.chdir(tmp_path)


@pytest.mark.by_default(0)
@pytest.mark.parametrize(("count", "seed"), [(150, 1), pytest.param(1000, 2, marks=pytest.mark.reliability)])
def test_suggestions_for_typos(nothing_trained, capsys, count, seed):
    assert share_of_right_suggestions(count, seed, capsys) >= 0.95


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ("agent=PPO", "ppo"),
        ("env=CartPole", "cartpole"),
        ("Env=cartpole", "env"),
        ("N_ENVS=3", "n_envs"),
        ("agent=dqn agent.targt_update_interval=3", "agent.target_update_interval"),
        ("agent=td3 agent.polcy_delay=3", "agent.policy_delay"),
        ("Train env=cartpole", "train"),
        ("evla", "eval"),
        ("device=cud", "cuda"),
        ("device=CPU", "cpu"),
        ("agent.optimizer.name=Adam", "adam"),
        ("agent.optimizer.name=rmsprp", "rmsprop"),
        ("agent.network.activation=tahn", "tanh"),
        ("agent=ddpg env=pendulum tuned=none agent.noise=guassian", "gaussian"),
        ("agent.advantage=gea", "gae"),
        ("env.on_nan=stpo", "stop"),
        ("experiment=wid", ""),
        ("tuned=cartpole_pp0", "cartpole_ppo"),
    ],
)
def test_suggestions(nothing_trained, capsys, arguments, right):
    assert suggested(arguments.split(), capsys) == right
