"""`warprun check`: exit codes and mistakes in its arguments."""

from pathlib import Path

import pytest

from warprun.checking.findings import Finding
from warprun.cli import main as cli


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
def test_mistakes_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", *arguments]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(("verdict", "code"), [("passed", 0), ("note", 0), ("warning", 0), ("failed", 1)])
def test_exit_codes_and_json(
    verdict: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("observations", verdict, "a line")  # type: ignore[arg-type]
    monkeypatch.setattr("warprun.checking.check.check", lambda config, overrides: [finding])
    assert cli.run(["check", "env=cartpole", f"out={tmp_path / 'found.json'}"]) == code
    assert "a line" in capsys.readouterr().out
    assert f'"verdict": "{verdict}"' in (tmp_path / "found.json").read_text()
