"""An agent in a package of its own: found by name, checked and trained like those of warprun."""

from __future__ import annotations

from pathlib import Path

import pytest

import warprun
from warprun.algorithms import AGENTS, agent_class, agent_names
from warprun.config.compose import compose
from warprun.errors import UserError

SETTINGS = [
    "env=bandit",
    "agent=reinforce_baseline",
    "env.params.offset=20",
    "n_envs=64",
    "total_steps=102400",
    "eval.every=never",
    "seed=1",
]
OTHERLAB = Path(__file__).parent / "otherlab"


@pytest.fixture
def otherlab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package `otherlab` with the agent, and a working folder with its config file and a bandit."""
    (tmp_path / "otherlab-1.dist-info").mkdir()
    (tmp_path / "otherlab-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: otherlab\nVersion: 1\n")
    entry = "[warprun.agents]\nreinforce_baseline = otherlab.reinforce:Reinforce\n"
    (tmp_path / "otherlab-1.dist-info" / "entry_points.txt").write_text(entry)
    for name, text in {
        "conf/agent/reinforce_baseline.yaml": "defaults:\n  - /reinforce_baseline_schema@_here_\n  - _self_\n",
        "conf/env/bandit.yaml": "name: bandit\nmodule: ./bandit.py\n",
        "bandit.py": "from tests.environments.probes import BANDIT as environment\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(OTHERLAB.parent))
    return tmp_path


def test_the_agent_is_found_and_checked(otherlab: Path) -> None:
    assert "reinforce_baseline" not in AGENTS
    assert "reinforce_baseline" in agent_names()
    assert agent_class("reinforce_baseline").__module__ == "otherlab.reinforce"
    assert compose([*SETTINGS, "agent.baseline_steps=3"]).agent.baseline_steps == 3
    with pytest.raises(UserError, match=r"^agent\.baseline_steps=-1: it must be at least 0$"):
        compose([*SETTINGS, "agent.baseline_steps=-1"])
    with pytest.raises(UserError, match=r"^agent\.gamma=2\.0: "):
        compose([*SETTINGS, "agent.gamma=2.0"])


@pytest.mark.parametrize("fused", [True, False])
def test_the_agent_solves_the_bandit(otherlab: Path, fused: bool, capsys: pytest.CaptureFixture[str]) -> None:
    result = warprun.train([*SETTINGS, "concurrency.threads=1", "device=cpu", "log.live=false", f"engine.fused={str(fused).lower()}"])
    assert result.eval_return == 22.0
    told = "rollout and update: " + ("fused rollout, update by torch" if fused else "stepwise")
    assert told in capsys.readouterr().out


def test_it_is_short() -> None:
    assert len((OTHERLAB / "reinforce.py").read_text().splitlines()) < 100
