"""The documentation is correct: examples run, commands are accepted, links exist, and tables match the schema."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import warprun
from tests.commands import PAGES, ROOT
from tests.scripts import load
from warprun.cli import new
from warprun.config.registry import options
from warprun.random import Rng

SMALL = ["total_steps=32", "n_envs=2", "agent.horizon=8", "agent.minibatches=1", "eval.episodes=2", "env.time_limit=8", "log.live=false"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def files(page: Path) -> dict[str, str]:
    """Return the files that a page tells its reader to make: blocks that begin with `# PATH` or `// PATH`."""
    named = re.compile(r"(?:# @package _global_\n)?(?:#|//) (\S+\.(?:py|yaml|c))\n")
    texts = blocks(page, "python") + blocks(page, "yaml") + blocks(page, "c")
    return {match[1]: text for text in texts if (match := named.match(text))}


def make_files(page: Path, folder: Path) -> None:
    for name, text in files(page).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder in which to make the files of a page, or of a folder of examples."""

    def make(source: Path) -> None:
        shutil.copytree(source, tmp_path, dirs_exist_ok=True) if source.is_dir() else make_files(source, tmp_path)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return make


NEED = {"noisy": "jax", "minatar": "minatar", "warped": "warp"}  # libraries that tests do not install
FOLDERS = [ROOT / "examples" / name for name in ("fishery", "jax", "simulator", "warp")]
QUICK = ("README-myenv", "fishery-fishery", "external-lake", "external-tank", "external-pendulums")
EXAMPLES = [
    pytest.param(source, name, id=named, marks=[] if named in QUICK else pytest.mark.slow)
    for source in [*PAGES, *FOLDERS]
    for file in (source.glob("conf/env/*.yaml") if source.is_dir() else map(Path, files(source)))
    if file.parent.name == "env" and (name := file.stem) != "tanks"  # an MPI program, which tests/test_extending.py trains
    for named in [f"{source.stem}-{name}"]
]


@pytest.mark.long
@pytest.mark.by_default(1)
@pytest.mark.parametrize(("source", "name"), EXAMPLES)
def test_example_environments_train(workplace, source, name):
    workplace(source)
    pytest.importorskip(NEED.get(name, "torch"))
    small = [setting for setting in SMALL if source.stem != "simulator" or not setting.startswith("env.time_limit")]
    network = ["agent.network=cnn"] if name == "minatar" else []
    result = warprun.train([f"env={name}", "tuned=none", *network, *small])
    assert (result.status, result.env_steps) == ("finished", 32)


def test_pages_quote_what_stands_in_the_file():
    for page, begins, file in (("environments", "def set_quota", "fishery/fishery.py"), ("external", "class Noisy", "jax/noisy.py")):
        (quoted,) = [block for block in blocks(ROOT / "docs" / f"{page}.md", "python") if block.startswith(begins)]
        text = (ROOT / "examples" / file).read_text()
        assert all(part.strip() in text for part in quoted.split("\n\n\n"))


def test_the_tutorial_shows_a_project_and_changes_its_physics():
    page, project = ROOT / "docs" / "tutorial.md", new.files("reactor", "")["reactor.py"]
    (step,) = [block for block in blocks(page, "python") if block.startswith("def step")]
    assert step in project
    changed = project
    for change in blocks(page, "diff"):
        before, after = ("".join(line[1:] for line in change.splitlines(True) if line[0] != sign) for sign in "+-")
        assert changed.count(before) == 1, change
        changed = changed.replace(before, after)
    tanks = []
    for source in (project, changed):
        exec(source, names := {})
        tanks.append(names["step"](names["State"](320.0, 320.0, 300.0), 0, Rng(*np.zeros(5, np.uint32)), names["Params"]())[0].tank)
    assert tanks[0] - tanks[1] == pytest.approx(5.0 * (320.0 - 293.0) / 600.0)


def test_the_gallery_has_a_small_film_of_every_environment():
    shown = re.findall(r"\]\(figures/film_(\w+)\.gif\)", (ROOT / "docs" / "gallery.md").read_text())
    of_others, variants = {"gymnasium", "gymnax", "brax", "jumanji"}, {"booster_continuous", "catalysis_continuous"}
    assert sorted(shown) == sorted({*options("env")} - of_others - variants)
    sizes = [(ROOT / "docs" / "figures" / f"film_{name}.gif").stat().st_size for name in shown]
    assert max(sizes) < 300_000 and sum(sizes) < 3_000_000


def test_functions_of_the_tutorial_run_in_plain_python(workplace):
    workplace(ROOT / "docs" / "environments.md")
    done = subprocess.run([sys.executable, "try_myenv.py"], capture_output=True, text=True)
    assert done.stdout.count("State(") == 3, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_images_exist(page):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor and linked.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], f"{page.name}: #{anchor}"


TABLE = re.compile(r"^\|(.*)\|\n\|[-|: ]+\|$", re.MULTILINE)
UNIT = re.compile(r"(steps/s|\b(s|ms|µs|ns|ns per .*|CPU s|per wall s|MB|GB|MiB|ratio|share)|%|times as long)$")
"""How the title of a column with measured numbers ends, or a part of it before a comma."""


def test_tables_of_measured_numbers_are_written_by_scripts():
    for page in (ROOT / "docs").rglob("*.md"):
        by_hand = re.sub(r"<!-- (?!end)[^>]*? -->\n.*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
        for titles in TABLE.findall(by_hand):
            assert not any(UNIT.search(part.strip()) for title in titles.split("|") for part in title.split(",")), f"{page.name}: {titles}"


@pytest.mark.parametrize("name", ["gpu", "sweeps"])
def test_the_evidence_of_tables_exists(name):
    page, code = (ROOT / "docs" / f"{name}.md").read_text(), "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    found = re.findall(r"`(test_\w+)(?:\[\w+\])?`", page)
    assert len(found) > 10 and [test for test in found if f"def {test}(" not in code] == []
    assert all((ROOT / path).exists() for path in re.findall(r"`((?:tests|scripts)/[\w/]+\.\w+)`", page))


def test_the_walk_through_ppo_quotes_what_stands_there() -> None:
    """Every reference names the line of its code, in six files at most."""
    source = load("source_tables")
    text = source.WALK.read_text()
    references = list(source.REFERENCE.finditer(text))
    assert len(references) == len(re.findall(r"#L\d+", text)) >= 12
    assert len({reference["file"] for reference in references}) <= 6
    assert source.numbered(text) == text, "run: python scripts/reproduce.py --write"
