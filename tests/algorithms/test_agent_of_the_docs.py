"""The algorithm of docs/extending.md, taken from the page and trained with the overrides of a command line."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

import warprun
from tests.test_docs import ROOT, blocks, files
from warprun.algorithms import AGENTS, agent_class, agent_names
from warprun.errors import UserError


@pytest.fixture
def mylab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installed package `mylab` of the page, and a working folder with a bandit."""
    page = ROOT / "docs" / "extending.md"
    (declared,) = (tomllib.loads(block)["project"]["entry-points"] for block in blocks(page, "toml"))
    entries = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items()) for group, named in declared.items()]
    for name, text in {
        **{name: text for name, text in files(page).items() if name.startswith("mylab/")},
        "mylab/__init__.py": "",
        "mylab/conf/__init__.py": "",
        "mylab-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: mylab\nVersion: 1\n",
        "mylab-1.dist-info/entry_points.txt": "\n".join(entries),
        "conf/env/bandit.yaml": "name: bandit\nmodule: ./bandit.py\n",
        "bandit.py": "from tests.environments.probes import BANDIT as environment\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for package in ("mylab", "mylab.conf"):  # not the module of the agent, whose settings Hydra knows after the first test
        monkeypatch.delitem(sys.modules, package, raising=False)
    return tmp_path


@pytest.mark.parametrize("fused", [True, False])
def test_the_agent_of_the_docs_solves_the_bandit(mylab: Path, fused: bool, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["env=bandit", "agent=reinforce", "env.params.offset=20", "n_envs=64", "total_steps=102400", "eval.every=never", "seed=1"]
    result = warprun.train([*settings, "concurrency.threads=1", "device=cpu", "log.live=false", f"engine.fused={str(fused).lower()}"])
    assert result.eval_return == 22.0
    assert agent_class("reinforce").__module__ == "mylab.reinforce"
    told = "rollout and update: " + ("fused rollout, update by torch" if fused else "stepwise")
    assert told in capsys.readouterr().out


def test_the_agent_of_the_docs_is_found_and_checked(mylab: Path) -> None:
    """By its own checks and those of all agents."""
    assert "reinforce" not in AGENTS
    assert "reinforce" in agent_names()
    for wrong in ("agent.gamma=2.0", "agent.normalize_advantage=true", "agent.groups.agent.normalize_advantage=true"):
        plus = "+" if "groups" in wrong else ""
        with pytest.raises(UserError, match=rf"^{re.escape(wrong)}: "):
            warprun.train(["env=bandit", "agent=reinforce", "device=cpu", plus + wrong])
