"""Values of another type by interpolation, and names that no file can have: exit code 2 and one line."""

import pytest

from warprun.cli import main as cli

LONG = "x" * 300
LINES = [
    "agent.groups=${env}",
    "agent.groups.agent=${env}",
    "agent.network=${env}",
    "agent.network.hidden=${agent}",
    "agent.gamma=${env}",
    "agent.optimizer=${agent.network}",
    "env.params=${agent}",
    "env.kwargs.x=${agent}",
    "env.randomize.gravity=${eval}",
    "log.services=${env}",
    "env.register=${seed}",
    "name=${agent}",
    "eval=${log}",
    "n_envs=${agent.network}",
    f"agent.groups.{LONG}=1",
    f"env.params.{LONG}=1",
    f"env={LONG}",
    f"agent={LONG}",
    f"experiment={LONG}",
    f"tuned={LONG}",
    f"launcher={LONG}",
    f"concurrency={LONG}",
    f"name={LONG}",
    f"run_dir={LONG}",
    f"output_root={LONG}",
    f"sweep_dir={LONG}",
    f"resume={LONG}",
    f"env.module={LONG}.py",
    f"env.module={LONG}",
    f"agent.network.module={LONG}.py:Net",
]
VERBS = [f"{verb} {LONG}" for verb in ("eval", "play", "export", "report", "status", "check", "new", "data", "scripts", "job")]
DEEP = [
    *(f"{given}=a/{LONG}" for given in ("run_dir", "output_root", "-m seed=0,1 sweep_dir", "-m seed=0,1 output_root", "bench out")),
    f"scripts a/{LONG}",
    "scripts a\0b",
    "bench out=a\0b",
]
"""Folders of which the first part could be made."""


@pytest.mark.by_default(28)
@pytest.mark.parametrize("line", [*DEEP, *LINES, *(f"-m seed=0,1 {line}" for line in LINES[14:26]), *VERBS])
def test_one_line_and_exit_code_2(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = line.split()
    code = cli.run(["env=mountain_car", "agent=dqn", "total_steps=100", *given] if line in LINES else given)
    told = capsys.readouterr().err
    assert code == 2, told
    assert told.startswith("warprun: error: ") and told.count("\n") == 1 and "Error:" not in told, told
    assert not list(tmp_path.rglob("*"))
