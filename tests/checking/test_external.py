"""The check of environments that are not made of kernels."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.written import add_environment
from warprun.cli import main as cli

pytest.importorskip("gymnasium")

from tests.checking.misbehaving import FAULTS
from warprun.checking.check import check
from warprun.checking.external import single
from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.spec import Box, Discrete, GroupSpec, Spec

HERE = Path(__file__).parent
OFTEN = ("state", "bounds", "unseeded", "unseeded_steps", "shape", "never_ends", "raises")
SETTINGS = ["env=gymnasium", f"env.module={HERE / 'misbehaving.py'}", "n_envs=8"]


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warprun.checking.external.STEPS", 400)
    monkeypatch.setattr("warprun.checking.rolls.SECONDS", 0.02)


@pytest.mark.parametrize("fault", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in FAULTS])
def test_a_mistake_in_a_class_is_found_and_named(fault: str) -> None:
    overrides = [*SETTINGS, f"env.kwargs.fault={fault}"]
    try:
        told = [finding.message for finding in check(compose(overrides), overrides) if finding.verdict in ("warning", "failed")]
    except UserError as error:
        told = [str(error)]
    assert any(all(word in line for word in FAULTS[fault]) for line in told), told


@pytest.mark.parametrize("saves", ["false", "true"])
def test_a_class_without_mistakes_passes(saves: str) -> None:
    given = [*SETTINGS, f"env.kwargs.saves={saves}"]
    found = check(compose(given), given)
    assert not [finding for finding in found if finding.verdict in ("warning", "failed")]
    assert [finding.verdict for finding in found if finding.check == "state"] == ["passed"] * (saves == "true")


def test_an_incomplete_state_is_told_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run([*SETTINGS, "env.kwargs.fault=state", "concurrency.workers=0", "device=cpu", "total_steps=100"]) == 0
    (line,) = (line for line in capfd.readouterr().out.splitlines() if "resume will not continue exactly: " in line)
    assert all(words in line for words in FAULTS["state"])


def test_the_environment_is_closed() -> None:
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    closed = Mock(wraps=env.close)
    env.close = closed  # type: ignore[method-assign]
    spec = Spec((GroupSpec("agent", 1, Box(4), Discrete(2)),))
    recipe = SimpleNamespace(recipe=SimpleNamespace(make=lambda: env, ranks=1), title="mine", spec=spec)
    assert list(single(recipe)) == []  # type: ignore[arg-type]
    closed.assert_called_once()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "FrozenLake-v1", "Taxi-v4"])
def test_environments_of_gymnasium_pass(name: str) -> None:
    overrides = ["env=gymnasium", f"env.id={name}", "n_envs=8"]
    found = check(compose(overrides), overrides)
    assert not [finding for finding in found if finding.verdict == "failed"]


def test_a_simulator_without_gymnasium_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_environment(tmp_path, "pinball", module="tests.environments.pinball")
    monkeypatch.chdir(tmp_path)
    assert cli.run(["check", "env=pinball", "out=found.json"]) == 0
    assert '"check": "determinism"' in (tmp_path / "found.json").read_text()
