"""The check finds planted mistakes and names them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checking.planted import FILES, PLANTED, write
from warprun.checking.check import begin, check, check_here
from warprun.checking.findings import Finding
from warprun.cli import main as cli
from warprun.config.compose import compose
from warprun.environment import Environment
from warprun.errors import UserError
from warprun.runs.build import set_up

OFTEN = ("swapped fields", "rare NaN", "variable set in one branch", "random of Python")
"""Mistakes that are always tested."""
CASES = [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in PLANTED]


def findings(overrides: list[str], processes: bool) -> list[Finding]:
    """Return what the check finds; without `processes` only what it finds in this process."""
    config = compose([*overrides, "device=cpu", "concurrency.threads=1"])
    if processes:
        return check(config, overrides)
    setup = set_up(replace(config))
    assert isinstance(setup.environment, Environment)
    return list(check_here(begin(setup, setup.environment)))


@pytest.mark.by_default(2)
@pytest.mark.parametrize("name", CASES)
def test_a_planted_mistake_is_found_and_named(name: str, tmp_path: Path) -> None:
    mistake = PLANTED[name]
    overrides = ["env=cartpole", f"env.module={write(mistake, tmp_path)}"]
    try:
        told = [finding.message for finding in findings(overrides, mistake.processes) if finding.verdict in ("warning", "failed")]
    except UserError as error:
        told = [str(error)]
    assert any(all(word in line for word in mistake.words) for line in told), told


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_files_without_a_mistake_pass(name: str) -> None:
    """tests/test_doors.py checks every environment that warprun ships, with all processes."""
    found = findings(["env=cartpole", f"env.module={FILES[name]}"], processes=False)
    assert not [finding for finding in found if finding.verdict == "failed"]


# `warprun check`: exit codes and mistakes in its arguments ------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "warprun check env=cartpole"),
        (["n_envs=3"], "warprun check env=cartpole"),
        (["env=cartpool"], "unknown environment"),
        (["env=cartpole", "env.params.gravty=3"], "gravty"),
        (["env=cartpole", "out=/no/such/folder/check.json"], "a folder that exists"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, refusal: Callable[..., str]) -> None:
    assert message in refusal("check", *arguments)


@pytest.mark.parametrize(("verdict", "code"), [("passed", 0), ("note", 0), ("warning", 0), ("failed", 1)])
def test_exit_codes_and_json(
    verdict: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("observations", verdict, "a line")  # type: ignore[arg-type]
    monkeypatch.setattr("warprun.checking.check.check", lambda config, overrides: [finding])
    assert cli.run(["check", "env=cartpole", f"out={tmp_path / 'found.json'}"]) == code
    assert "a line" in capsys.readouterr().out
    assert f'"verdict": "{verdict}"' in (tmp_path / "found.json").read_text()
