"""`warprun new`: its projects are well-formed, learn and pass their own tests; mistakes leave nothing behind."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.commands import ROOT, scripts
from tests.selection import few
from tests.words import words
from warprun.cli import new
from warprun.cli.main import run
from warprun.runs import checkpoint

NAME = "reactor"
COMMANDS = {"warprun": "-m tests.commands", "pip": "-m pip", "pytest": "-m pytest"}
"""Program -> how Python runs it; commands of warprun have a tiny budget."""
INSTALL = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--target", "site"]
PLAIN = "not check and not learns and not solves"
"""The tests of a project that compile nothing."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Return the folder of a new project of a variant, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    assert run(["new", NAME, *filter(None, [request.param])]) == 0
    monkeypatch.chdir(tmp_path / NAME)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / NAME / 'site'}{os.pathsep}{ROOT}")
    return tmp_path / NAME


def python(*arguments: str) -> str:
    """Run Python; return what it prints."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("project", new.VARIANTS, indirect=True)
def test_projects_are_well_formed_and_named(project: Path) -> None:
    """No linter complains, and neither the name in the templates nor a file of another variant is left."""
    given = ["--isolated", "--line-length=120", "--no-cache", "."]
    python("-m", "ruff", "check", "--select=E,F,W,I,B,UP,SIM,C4,PIE,RUF", *given)
    python("-m", "ruff", "format", "--check", *given)
    found = {str(file.relative_to(project)): file.read_text() for file in project.rglob("*") if file.is_file()}
    assert not [name for name, text in found.items() if new.PLACEHOLDER in name + text]
    assert {".gitignore", "README.md", "test_reactor.py"} < found.keys()
    assert len([line for line in scripts(project / "README.md")[0].splitlines() if line]) == 5


@pytest.mark.by_default(2)
@pytest.mark.parametrize("project", [variant for variant in new.VARIANTS if variant != "--agent"], indirect=True)
def test_equations_pass_their_tests_in_plain_python(project: Path) -> None:
    pytest.importorskip("gymnasium")
    python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("project", new.VARIANTS, indirect=True)
def test_projects_pass_all_of_their_tests(project: Path) -> None:
    if (project / "pyproject.toml").exists():
        python("-m", "pip", *INSTALL, ".")
    python("-m", "pytest", "-q")


@pytest.mark.long
@pytest.mark.parametrize("project", few(new.VARIANTS, "--gymnasium", "--tensors", "--agent"), indirect=True)
def test_commands_of_the_readme_run(project: Path) -> None:
    """As they are written, with tiny budgets. The README of warprun shows those of the first variant."""
    for command in scripts(project / "README.md")[0].splitlines():
        program, *given = command.split()
        if program == "pip":
            given = [*INSTALL, "."]
        if program == "pytest":
            given = ["-k", PLAIN]
        said = python(*COMMANDS[program].split(), *given)
        assert given[0] != "check" or "0 failed, 0 warnings" in said
    assert list(project.glob("outputs/*/metrics.jsonl")) or list(project.glob("outputs/*/*/metrics.jsonl"))


@pytest.mark.long
@pytest.mark.parametrize("project", ["--tensors"], indirect=True)
def test_a_run_of_tensors_is_resumed_exactly(project: Path) -> None:
    small = words("""
        agent.horizon=16 agent.minibatches=2 n_envs=8 eval.every=never eval.final_episodes=2 device=cpu log.live=false
    """)
    assert run([f"env={NAME}", *small, "total_steps=640", "run_dir=whole"]) == 0
    assert run([f"env={NAME}", *small, "total_steps=384", "run_dir=parts"]) == 0
    assert run(["resume=parts", "total_steps=640"]) == 0
    whole, parts = (checkpoint.load(project / folder).tensors for folder in ("whole", "parts"))
    names = [name for name in whole if name.startswith(("agent/", "simulator/"))]
    assert len(names) > 10 and all(torch.equal(whole[name], parts[name]) for name in names)


WRONG = {
    "3d": "the name is that of a Python module",
    "my-reactor": "the name is that of a Python module",
    "a/b": "the name is that of a Python module",
    "lambda": "the name is that of a Python module",
    "null": "is a value of settings",
    "cartpole": "env=cartpole exists",
    "json": "has a module json",
    "numpy": "has a module numpy",
    "taken": "taken exists here",
    "ppo --agent": "agent=ppo exists",
    "reactor --continous": "did you mean '--continuous'?",
    "reactor --actors --agent": "at most one option",
    "reactor pump": "takes a name",
    "--actors": "takes a name",
}


def test_mistakes_are_told_in_one_line_and_leave_nothing(here: Path, refusal: Callable[..., str]) -> None:
    Path("taken").touch()
    for given, reason in WRONG.items():
        assert reason in refusal("new", *given.split())
        assert os.listdir() == ["taken"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device", "reactor/x"), KeyboardInterrupt()])
def test_a_project_that_cannot_be_written_leaves_nothing(
    error: BaseException, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Path.write_text

    def fail(path: Path, *given: str, **named: str) -> int:
        if path.suffix == ".py":
            raise error
        return write(path, *given, **named)

    monkeypatch.setattr(Path, "write_text", fail)
    assert run(["new", NAME]) in (2, 130)
    assert capsys.readouterr().err.count("\n") == 1
    assert not os.listdir()


def test_what_compiling_the_templates_leaves_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip compiles all Python files that it installs."""
    shutil.copytree(new.TEMPLATES, tmp_path / "templates")
    (tmp_path / "templates" / "discrete" / "__pycache__").mkdir(exist_ok=True)
    (tmp_path / "templates" / "discrete" / "__pycache__" / "PROJECT.cpython-311.pyc").write_bytes(b"\xff")
    before = new.files(NAME, "")
    monkeypatch.setattr(new, "TEMPLATES", tmp_path / "templates")
    assert new.files(NAME, "") == before
