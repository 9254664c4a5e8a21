"""The agent of docs/architecture.md, exactly as it stands there, trained from the command line's overrides."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import warprun
from tests.test_docs import ROOT, files
from warprun.algorithms import agent_class


@pytest.fixture
def mylab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package `mylab` with the agent, and a working folder with its config file and a bandit."""
    written = files(ROOT / "docs" / "architecture.md")
    (tmp_path / "mylab").mkdir()
    (tmp_path / "mylab" / "__init__.py").touch()
    (tmp_path / "mylab" / "reinforce.py").write_text(written["mylab/reinforce.py"])
    (tmp_path / "mylab-1.dist-info").mkdir()
    (tmp_path / "mylab-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mylab\nVersion: 1\n")
    entry = "[warprun.agents]\nreinforce = mylab.reinforce:Reinforce\n"
    (tmp_path / "mylab-1.dist-info" / "entry_points.txt").write_text(entry)
    for name, text in {
        "conf/agent/reinforce.yaml": "defaults:\n  - /reinforce_schema@_here_\n  - _self_\n",
        "conf/env/bandit.yaml": "name: bandit\nmodule: ./bandit.py\n",
        "bandit.py": "from tests.environments.probes import BANDIT as environment\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mylab", raising=False)
    return tmp_path


@pytest.mark.parametrize("fused", [True, False])
def test_the_agent_of_the_docs_solves_the_bandit(mylab: Path, fused: bool, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["env=bandit", "agent=reinforce", "env.params.offset=20", "n_envs=64", "total_steps=102400", "eval.every=never", "seed=1"]
    result = warprun.train([*settings, "concurrency.threads=1", "device=cpu", "log.live=false", f"engine.fused={str(fused).lower()}"])
    assert result.eval_return == 22.0
    assert agent_class("reinforce").__module__ == "mylab.reinforce"
    told = "rollout and update: " + ("fused rollout, update by torch" if fused else "stepwise")
    assert told in capsys.readouterr().out
