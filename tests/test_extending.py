"""The simulator and the concurrency mode of docs/extending.md, taken from the page and run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warprun
from tests.test_docs import ROOT, files


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    for name, text in files(ROOT / "docs" / "extending.md").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("agent", ["agent=ppo", "agent=dqn agent.utd_ratio=0.05"])
def test_agents_solve_the_simulator_of_the_docs(examples: Path, monkeypatch: pytest.MonkeyPatch, agent: str) -> None:
    monkeypatch.chdir(examples)
    settings = ["env=corridor", *agent.split(), "n_envs=64", "total_steps=1e5", "device=cpu", "concurrency.threads=1", "log.live=false"]
    result = warprun.train(settings)
    assert result.solved
    assert result.eval_return == pytest.approx(0.93)


@pytest.mark.by_default(0)
def test_processes_of_the_concurrency_mode_of_the_docs_hold_the_same_network(examples: Path) -> None:
    command = [sys.executable, "distributed.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    programs = [
        subprocess.Popen([*command, str(rank), "2", "meeting"], cwd=examples, env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    sums = [re.search(r"sum of parameters (\S+),", program.communicate(timeout=120)[0]) for program in programs]
    assert sums[0] and sums[1]
    assert sums[0][1] == sums[1][1]
