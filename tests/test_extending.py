"""What docs/extending.md, external.md and api.md show is taken from the pages and run."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import warprun
from tests.test_docs import ROOT, blocks, files
from tests.words import words
from warprun.algorithms import AGENTS, agent_class, agent_names
from warprun.cli import new
from warprun.errors import UserError


def write(folder: Path, content: dict[str, str]) -> Path:
    """Write files into a folder, by their names; return it."""
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """The folder of the simulator that the page links to, to train in."""
    return shutil.copytree(ROOT / "examples" / "simulator", tmp_path, dirs_exist_ok=True)


@pytest.mark.by_default(0)
@pytest.mark.parametrize("agent", ["agent=ppo", "agent=dqn agent.utd_ratio=0.05"])
def test_agents_solve_the_simulator_of_the_docs(examples: Path, monkeypatch: pytest.MonkeyPatch, agent: str) -> None:
    monkeypatch.chdir(examples)
    settings = ["env=corridor", *agent.split(), "n_envs=64", "total_steps=1e5", "device=cpu", "concurrency.threads=1", "log.live=false"]
    result = warprun.train(settings)
    assert result.solved
    assert result.eval_return == pytest.approx(0.93)


# The simulators of docs/external.md, taken from the page and run ------------------------------------------------------

EXTERNAL = ROOT / "docs" / "external.md"
SMALL = words("""
    agent=ppo agent.horizon=16 n_envs=4 total_steps=128 eval.episodes=2 eval.every=never log.live=false device=cpu
""")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page, which is the working folder."""
    monkeypatch.chdir(write(tmp_path, files(EXTERNAL)))
    return tmp_path


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_simulator_in_c_takes_the_same_steps_as_that_in_python(folder: Path) -> None:
    (source,) = blocks(EXTERNAL, "c")
    (folder / "fasttank.c").write_text(source)
    (compile_it,) = re.findall(r"^cc .*$", EXTERNAL.read_text(), flags=re.MULTILINE)
    subprocess.run(compile_it.split(), check=True)
    runs = [warprun.train(["env=tank", f"env.module=./{name}.py", "concurrency.workers=2", *SMALL]) for name in ("tank", "fasttank")]
    assert [run.status for run in runs] == ["finished", "finished"]
    assert runs[0].eval_return == pytest.approx(runs[1].eval_return)
    assert (runs[1].folder / "environment" / "fasttank.py").exists()


@pytest.mark.slow
def test_ppo_learns_to_keep_the_level(folder: Path) -> None:
    given = ["env=tank", "agent=ppo", "n_envs=16", "total_steps=2e5", "eval.every=never", "device=cpu", "concurrency.workers=0"]
    result = warprun.train([*given, "log.live=false"])
    assert result.eval_return is not None and result.eval_return > -10.0  # random actions have -21


@pytest.mark.by_default(0)
def test_the_mpi_program_of_the_page_trains_and_is_evaluated(folder: Path) -> None:
    pytest.importorskip("mpi4py")
    from tests.parallel.ranks import start

    given = ["env=tanks", *SMALL, "concurrency=async", "concurrency.ranks_per_env=2", "run_dir=run", "tuned=none"]
    done = start(5, *given, cwd=folder)
    assert done.returncode == 0, done.stderr
    done = start(2, "eval", "run", "episodes=2", "device=cpu", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "return" in done.stdout


# The examples of docs/api.md run ----------------------------------------------------------------------------------

INTEROP = ROOT / "docs" / "api.md"
EXAMPLES = [block for block in blocks(INTEROP, "python") if not re.match(r"# \S+\.py\n", block) and "warprun.train" not in block]
assert len(EXAMPLES) == 6
NEEDS = {"stable_baselines3": "stable_baselines3", "pettingzoo": "make_parallel"}
"""Library -> a word of the examples that need it."""


@pytest.mark.by_default(2)
@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_runs(example, tmp_path, monkeypatch):
    for library, word in NEEDS.items():
        if word in example:
            pytest.importorskip(library)
    monkeypatch.chdir(write(tmp_path, files(INTEROP)))
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(compile(example, str(INTEROP), "exec"), {})


def test_gymnasium_makes_what_the_table_names_without_an_import_of_warprun():
    (call,) = re.findall(r"^\| `(gymnasium\.make\(.*?\))`", INTEROP.read_text(), flags=re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", f"import gymnasium; print({call}.spec.id)"], capture_output=True, text=True)
    assert done.stdout == "warprun/CartPole-v0\n", done.stderr


# The algorithm of docs/extending.md, trained with the overrides of a command line ------------------------------------


def test_the_algorithm_of_the_page_is_that_of_a_new_project() -> None:
    page, made = ROOT / "docs" / "extending.md", new.files("reinforce", "--agent")
    (agent,) = [block for block in blocks(page, "python") if block.startswith("class Agent")]
    assert agent in made["reinforce/agent.py"]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installed package of that project, and a working folder with a bandit."""
    made = new.files("reinforce", "--agent")
    declared = tomllib.loads(made["pyproject.toml"])["project"]["entry-points"]
    entries = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items()) for group, named in declared.items()]
    content = {
        **made,
        "reinforce-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: reinforce\nVersion: 1\n",
        "reinforce-1.dist-info/entry_points.txt": "\n".join(entries),
        "conf/env/bandit.yaml": "name: bandit\nmodule: ./bandit.py\n",
        "bandit.py": "from tests.environments.probes import BANDIT as environment\n",
    }
    monkeypatch.chdir(write(tmp_path, content))
    monkeypatch.syspath_prepend(str(tmp_path))
    for package in ("reinforce", "reinforce.conf"):  # not the module of the agent, whose settings Hydra knows after the first test
        monkeypatch.delitem(sys.modules, package, raising=False)
    return tmp_path


@pytest.mark.by_default(1)
@pytest.mark.parametrize("fused", [True, False])
def test_the_agent_of_the_docs_solves_the_bandit(installed: Path, fused: bool, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["env=bandit", "agent=reinforce", "env.params.offset=20", "n_envs=64", "total_steps=102400", "eval.every=never", "seed=1"]
    result = warprun.train([*settings, "concurrency.threads=1", "device=cpu", "log.live=false", f"engine.fused={str(fused).lower()}"])
    assert result.eval_return == 22.0
    assert agent_class("reinforce").__module__ == "reinforce.agent"
    told = "rollout and update: " + ("fused" if fused else "stepwise")
    assert told in capsys.readouterr().out


def test_the_agent_of_the_docs_is_found_and_checked(installed: Path) -> None:
    """By its own checks and those of all agents."""
    assert "reinforce" not in AGENTS
    assert "reinforce" in agent_names()
    for wrong in ("agent.gamma=2.0", "agent.normalize_advantage=true", "agent.groups.agent.normalize_advantage=true"):
        plus = "+" if "groups" in wrong else ""
        with pytest.raises(UserError, match=rf"^{re.escape(wrong)}: "):
            warprun.train(["env=bandit", "agent=reinforce", "device=cpu", plus + wrong])
