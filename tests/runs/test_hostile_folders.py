"""Opening a run folder that somebody else made: no code of it runs, nothing is written outside, nothing hangs, one line says why."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import warprun
from tests import gliders
from tests.finished import in_time
from tests.runs.hostile import CASES, ODD_FILES, PLANTED, Case
from tests.words import words
from warprun.cli.main import run
from warprun.cli.process import USER_ERROR
from warprun.config.schema import from_dict
from warprun.errors import UserError
from warprun.runs import rundir
from warprun.runs.evaluation import Evaluation, Evaluator, evaluate_run
from warprun.runs.opening import environment_modules, open_config

SMALL = [*gliders.SMALL, "total_steps=64", "env.time_limit=20"]
TABLES = """
class Tables(NamedTuple):
    rain: np.ndarray


def tables():
    return Tables(np.array([5.0, 6.0], np.float32))
"""
GLIDER = gliders.glider("import numpy as np", TABLES, "s, tables", "tables.rain[0]", "tables=tables")
SECONDS = 60
"""Longest time of one case in its own process, start included."""
MAX_GROWTH = 100 << 20


@dataclass(frozen=True)
class Runs:
    """Real runs of somebody else, by template."""

    folders: dict[str, Path]
    home: Path
    """Of the user who made them: with the key of their seals."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    root = tmp_path_factory.mktemp("made")
    (root / "conf" / "env").mkdir(parents=True)
    (root / "conf" / "env" / "glider.yaml").write_text("name: glider\nmodule: ./glider.py\n")
    (root / "glider.py").write_text(GLIDER)
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("XDG_CONFIG_HOME", str(root / "home"))
        warprun.train(["env=cartpole", "run_dir=shipped", *SMALL])
        warprun.train(["env=glider", "run_dir=file", *SMALL])
    assert Path.cwd() == before
    yield Runs({"shipped": root / "shipped", "file": root / "file", "parent": root / "shipped"}, root / "home")


@dataclass(frozen=True)
class Place:
    """The working folder of somebody who opens a folder."""

    folder: Path
    canary: Path

    def environment(self) -> dict[str, str]:
        home = {"HOME": str(self.folder / "home"), "XDG_CONFIG_HOME": str(self.folder / "home" / "config")}
        return home | {"WARPRUN_CACHE_DIR": str(self.folder / "cache"), "CANARY": str(self.canary), "SECRET": "swordfish"}

    def make(self, case: Case, runs: Runs) -> list[str]:
        """Make the folder of a case; return the arguments of `warprun`."""
        work = self.folder / "work"
        for name in ("home/config", "cache"):
            (self.folder / name).mkdir(parents=True)
        target = work / "run"
        if case.template == "parent":
            target = work / "outputs"
            shutil.copytree(runs.folders["parent"], target / "run")
        else:
            shutil.copytree(runs.folders[case.template], target)
        (work / "planted.py").write_text(PLANTED)
        (work / "planted_network.py").write_text(f"{PLANTED}\nNet = print\n")
        (work / "planted_package").mkdir()
        for name in ("__init__", "env"):
            (work / "planted_package" / f"{name}.py").write_text(PLANTED)
        case.alter(target)
        opened = case.target if case.target is not None else "run"
        return ["eval", opened, "episodes=4", "device=cpu", *case.arguments]

    def files(self) -> set[str]:
        """Return every path, without kernels and bytecode."""
        found = set()
        for folder, folders, files in os.walk(self.folder):
            found |= {
                os.path.join(folder, name) for name in (*folders, *files) if name != "__pycache__" and not folder.endswith("__pycache__")
            }
        kernels = str(self.folder / "cache" / "kernels")
        return {path for path in found if "__pycache__" not in path and not path.startswith(kernels)}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "inner" / "deep").mkdir(parents=True)
    return Place(tmp_path / "inner" / "deep", tmp_path / "canary")


MEASURES_MEMORY = Path("/proc/self/clear_refs").exists()


def memory(name: str) -> int:
    """Return a number of /proc/self/status in bytes."""
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) << 10


def judge(code: int, output: str, errors: str, place: Place, before: set[str]) -> None:
    assert not place.canary.exists(), "planted code was run"
    assert place.files() - before == set(), "something was written"
    lines = [line for line in errors.splitlines() if not line.startswith("warning: ")]
    assert code == USER_ERROR, f"exit code {code}: {errors or output}"
    assert len(lines) == 1 and lines[0].startswith("warprun: error: "), errors
    assert len(lines[0]) < 1_500, f"{len(lines[0])} characters: {lines[0][:300]}"
    assert "swordfish" not in output + errors
    assert "Traceback" not in errors and "\x1b" not in errors


SAMPLED = [pytest.param(name, marks=[pytest.mark.reliability] if n % 3 else []) for n, name in enumerate(CASES)]
"""Every third case without, all with `pytest -m reliability`."""


@pytest.mark.parametrize("name", SAMPLED)
def test_a_hostile_or_broken_folder_is_refused_in_one_line(
    name: str, runs: Runs, place: Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = place.make(CASES[name], runs)
    for variable, value in place.environment().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(place.folder / "work")
    monkeypatch.syspath_prepend(str(place.folder / "work"))
    before = place.files()
    capfd.readouterr()
    if MEASURES_MEMORY:
        Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
    resident = memory("VmRSS") if MEASURES_MEMORY else 0
    with in_time(SECONDS / 6):
        code = run(arguments)
    growth = memory("VmHWM") - resident if MEASURES_MEMORY else 0
    output = capfd.readouterr()
    judge(code, output.out, output.err, place, before)
    assert growth < MAX_GROWTH


# What still opens ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of another user, with copies of both runs."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in ("shipped", "file"):
        shutil.copytree(runs.folders[name], tmp_path / name)
    return tmp_path


def refusal(folder: str | Path, trusted: bool = False) -> str:
    """Return why a run folder is not opened; empty if it is."""
    try:
        open_config(Path(folder), from_dict(rundir.read_config(Path(folder))), trusted)
    except UserError as error:
        return str(error)
    return ""


def test_a_run_opens_for_the_user_who_made_it_and_for_others_with_trust(here: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "file/environment/glider.py"
    why = f"file is not a run of yours (no valid seal), and it would run the code in {code}: read it, then add trust=true"
    assert refusal("shipped") == ""  # the code of the installation
    assert refusal("file") == why
    assert refusal("file", trusted=True) == ""
    assert not (here / "home").exists()  # to look at a seal makes no key
    monkeypatch.setenv("XDG_CONFIG_HOME", str(runs.home))
    assert refusal("file") == ""
    for changed in ("config.yaml", "environment/manifest.json"):
        text = (here / "file" / changed).read_text()
        (here / "file" / changed).write_text(text + "\n")
        assert refusal("file") == why
        (here / "file" / changed).write_text(text)
    assert refusal("file") == ""


def test_an_environment_that_the_user_has_opens_if_its_content_is_the_same(here: Path) -> None:
    (here / "glider.py").write_text(GLIDER)
    assert refusal("file")  # no config file of the user says that this is an environment
    (here / "conf" / "env").mkdir(parents=True)
    (here / "conf" / "env" / "glider.yaml").write_text("name: glider\nmodule: ./glider.py\n")
    assert refusal("file") == ""
    (here / "glider.py").write_text(GLIDER + "\n")
    assert refusal("file")


def test_a_file_whose_path_begins_like_the_names_of_warpruns_environments_is_none_of_them(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    named = "warprun.envs.shared/glider.py"
    (here / named).parent.mkdir()
    (here / named).write_text(GLIDER)
    for file in ("config.yaml", "environment/manifest.json"):
        text = (here / "file" / file).read_text()
        changed = text.replace("./glider.py", named)
        assert changed != text
        (here / "file" / file).write_text(changed)
    assert "trust=true" in refusal("file")
    monkeypatch.setenv("CANARY", str(here / "canary"))
    (here / named).write_text(PLANTED)
    assert run(["eval", "file", "episodes=2", "device=cpu"]) == USER_ERROR
    assert "trust=true" in capfd.readouterr().err and not (here / "canary").exists()


def test_the_working_folder_in_a_run_folder_is_not_the_users(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "file" / "glider.py").write_text(GLIDER)
    (here / "file" / "conf" / "env").mkdir(parents=True)
    (here / "file" / "conf" / "env" / "glider.yaml").write_text("name: glider\nmodule: ./glider.py\n")
    for place in ("file", "file/conf"):
        monkeypatch.chdir(here / place)
        assert refusal(here / "file")


def test_eval_with_trust_and_without(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "file", "episodes=2", "device=cpu"]) == USER_ERROR
    assert "trust=true" in capfd.readouterr().err
    assert run(["eval", "file", "episodes=2", "device=cpu", "trust=true"]) == 0
    assert "100.000" in capfd.readouterr().out


ODD_CONFIGS = {name: ODD_FILES[name] for name in ("fifo", "zero", "sparse", "folder")}


@pytest.mark.parametrize("kind", ODD_CONFIGS)
def test_odd_config_files_of_environments_are_left_out(here: Path, kind: str) -> None:
    folder = here / "conf" / "env"
    folder.mkdir(parents=True)
    (folder / "good.yaml").write_text("module: good.module\n")
    ODD_CONFIGS[kind](folder / "odd.yaml")
    with in_time(10):
        assert "good.module" in environment_modules(here / "elsewhere")


LINKS = words("""
    metrics.jsonl config.yaml.tmp status.json.tmp checkpoints/manifest.json.tmp events.out.tfevents.0
    environment/seal.tmp
""")


@pytest.mark.parametrize("name", [*LINKS, "checkpoints", "best"])
@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_resume_writes_nothing_through_links(
    here: Path, name: str, make: Callable[[Path, Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    target = here / "precious"
    if "." in name or "seal" in name:
        target.write_text("mine\n" * 10_000)
    elif make is os.link:
        pytest.skip("folders have no hard links")
    else:
        shutil.copytree(here / "shipped" / "checkpoints", target)
    before = {path: path.read_bytes() for path in (target, *target.rglob("*")) if path.is_file()}
    path = here / "shipped" / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    make(target, path)
    assert run(["resume=shipped", "total_steps=128"]) == USER_ERROR
    assert f"{name} is a link or no regular file, and the command would write to it; remove it" in capfd.readouterr().err
    assert {path: path.read_bytes() for path in (target, *target.rglob("*")) if path.is_file()} == before


def test_a_run_begins_in_no_folder_with_links(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "target").mkdir()
    (here / "begun").mkdir()
    (here / "begun" / "lock").touch()
    (here / "begun" / "environment").symlink_to(here / "target")
    assert run(["env=cartpole", "run_dir=begun", *SMALL]) == USER_ERROR
    assert "begun/environment is a link" in capfd.readouterr().err
    assert not list((here / "target").iterdir())


def test_the_user_can_name_a_run_folder_by_a_link(here: Path) -> None:
    (here / "night").symlink_to("shipped")
    assert run(["resume=night", "total_steps=128"]) == 0


def test_the_report_is_that_of_the_code_that_was_checked(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder changes during the evaluation, manifest and code."""
    play = Evaluator.play

    def altered(*arguments: Any) -> Evaluation:
        source = here / "file" / "environment" / "glider.py"
        source.write_text(GLIDER + "\n\ndef report(play, folder):\n    return {'planted': 1.0}\n")
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        manifest = here / "file" / "environment" / "manifest.json"
        content = json.loads(manifest.read_text())
        content["files"]["glider"]["sha256"] = digest
        manifest.write_text(json.dumps(content))
        return play(*arguments)

    monkeypatch.setattr(Evaluator, "play", altered)
    assert "planted" not in evaluate_run(here / "file", 2, True, "cpu", 0, trusted=True)
