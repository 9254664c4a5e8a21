"""The documentation is correct: examples run, commands are accepted, links exist, and tables match the schema."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import warprun
from tests.commands import PAGES, ROOT, commands_of_page
from tests.scripts import load
from tests.selection import few
from warprun.cli import new
from warprun.config.registry import options
from warprun.random import Rng

SMALL = ["total_steps=32", "n_envs=2", "agent.horizon=8", "agent.minibatches=1", "eval.episodes=2", "env.time_limit=8", "log.live=false"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def files(page: Path) -> dict[str, str]:
    """Return the files that a page tells its reader to make: blocks that begin with `# PATH` or `// PATH`."""
    found = {}
    for block in blocks(page, "python") + blocks(page, "yaml") + blocks(page, "c"):
        named = re.match(r"(?:# @package _global_\n)?(?:#|//) (\S+\.(?:py|yaml|c))\n", block)
        if named:
            found[named[1]] = block
    return found


def make_files(page: Path, folder: Path) -> None:
    for name, text in files(page).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder in which to make the files of a page."""

    def make(page: Path) -> Path:
        make_files(page, tmp_path)
        return tmp_path

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return make


PARALLEL = "conf/env/tanks.yaml"
"""An MPI program, which tests/test_extending.py trains with several processes."""
NEED = {"noisy": "jax", "minatar": "minatar", "warped": "warp"}
"""Example -> its library, which tests do not install."""
OF_PICTURES = ("minatar",)
"""Examples whose observations are pictures."""
QUICK = ("README-myenv", "environments-fishery", "external-lake", "external-tank", "external-pendulums")
EXAMPLES = [
    pytest.param(page, name, id=named, marks=[] if named in QUICK else pytest.mark.slow)
    for page in PAGES
    for name in files(page)
    if name.startswith("conf/env/") and name != PARALLEL
    for named in [f"{page.stem}-{Path(name).stem}"]
]


@pytest.mark.long
@pytest.mark.by_default(1)
@pytest.mark.parametrize(("page", "name"), EXAMPLES)
def test_example_environments_train(workplace, page, name):
    workplace(page)
    example = Path(name).stem
    if example in NEED:
        pytest.importorskip(NEED[example])
    small = [setting for setting in SMALL if page.stem != "extending" or not setting.startswith("env.time_limit")]
    network = ["agent.network=cnn"] if example in OF_PICTURES else []
    result = warprun.train([f"env={example}", "tuned=none", *network, *small])
    assert result.status == "finished"
    assert result.env_steps == 32


def test_there_are_examples():
    assert len(EXAMPLES) >= 4


def tank_after_a_step(reactor: str) -> float:
    """Return the temperature of the tank, at first 320 K, after a step with the heater off."""
    names: dict = {}
    exec(reactor, names)
    return names["step"](names["State"](320.0, 320.0, 300.0), 0, Rng(*np.zeros(5, np.uint32)), names["Params"]())[0].tank


def test_the_tutorial_shows_a_project_and_changes_its_physics():
    page, project = ROOT / "docs" / "tutorial.md", new.files("reactor", "")["reactor.py"]
    (step,) = [block for block in blocks(page, "python") if block.startswith("def step")]
    assert step in project
    changed = project
    for change in blocks(page, "diff"):
        before, after = ("".join(line[1:] for line in change.splitlines(True) if line[0] != sign) for sign in "+-")
        assert changed.count(before) == 1, change
        changed = changed.replace(before, after)
    assert tank_after_a_step(project) - tank_after_a_step(changed) == pytest.approx(5.0 * (320.0 - 293.0) / 600.0)


def test_the_gallery_has_a_small_film_of_every_environment():
    shown = re.findall(r"\]\(figures/film_(\w+)\.gif\)", (ROOT / "docs" / "gallery.md").read_text())
    of_others, variants = {"gymnasium", "gymnax", "brax", "jumanji"}, {"booster_continuous", "catalysis_continuous"}
    assert sorted(shown) == sorted({*options("env")} - of_others - variants)
    sizes = [(ROOT / "docs" / "figures" / f"film_{name}.gif").stat().st_size for name in shown]
    assert max(sizes) < 300_000 and sum(sizes) < 3_000_000


def test_functions_of_the_tutorial_run_in_plain_python(workplace):
    folder = workplace(ROOT / "docs" / "environments.md")
    done = subprocess.run([sys.executable, "try_myenv.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("State(") == 3


@pytest.mark.parametrize("setting", few(["NUMBA_DISABLE_JIT=1", "device=cudasim"], "NUMBA_DISABLE_JIT=1"))
def test_ways_to_debug_of_the_tutorial(workplace, tmp_path, setting, monkeypatch):
    page = ROOT / "docs" / "environments.md"
    workplace(page)
    (command,) = [command for command in commands_of_page(page) if setting in command]
    before, _, after = command.partition("warprun ")
    for name, value in (word.split("=") for word in before.split()):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    program = "import sys; from warprun.cli.main import run; sys.exit(run(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", program, *after.split(), "run_dir=run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_images_exist(page):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor and linked.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], f"{page.name}: #{anchor}"


def rows_of(study, kept):
    """Return the lines of the table of a study, without its titles."""
    return load("result_tables").TABLES[study].write(kept).splitlines()[2:]


def test_result_table_has_a_line_for_a_case():
    run = {"bar": -200.0, "last/return": -150.04, "last/return_stderr": 2.26, "env_steps": 1000, "wall_s": 2.0}
    runs = [run, run | {"last/return": -300.0}, run | {"last/return": -200.0}]
    seeds = {str(seed): run for seed, run in enumerate(runs)}
    assert rows_of("tuned", {"pendulum_ppo": seeds}) == ["| pendulum_ppo | -200 | 2/3 | -300.0 ± 2.3 | -200.0 ± 2.3 | 1,000 | 2.0 |"]
    assert rows_of("tuned", {"pendulum_ppo": {"0": {"failed": True}}}) == ["| pendulum_ppo |  | 0/1 |  |  |  |  |"]


def test_robustness_table_counts_the_seeds_that_learn():
    run = {"bar": 475.0, "last/return": 500.0}
    runs = dict(enumerate([run, run | {"last/return": 9.0}, run | {"last/return": 480.0}, *2 * [{"failed": True}]]))
    cases = {f"{env} {setting}": runs for env in ("cartpole", "pendulum") for setting in ("defaults", "n_envs=1")}
    assert rows_of("untuned", cases) == [f"| {setting} | 2/5 (480) | 2/5 (480) |" for setting in ("defaults", "n_envs=1")]


TABLE = re.compile(r"^\|(.*)\|\n\|[-|: ]+\|$", re.MULTILINE)
UNIT = re.compile(r"(steps/s|\b(s|ms|µs|ns|ns per .*|CPU s|per wall s|MB|GB|MiB|ratio|share)|%|times as long)$")
"""How the title of a column with measured numbers ends, or a part of it before a comma."""


def test_tables_of_measured_numbers_are_written_by_scripts():
    """Numbers between marks are recomputed from raw files, others are not."""
    found = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        by_hand = re.sub(r"<!-- (?!end)[^>]*? -->\n.*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
        for titles in TABLE.findall(by_hand):
            if any(UNIT.search(part.strip()) for title in titles.split("|") for part in title.split(",")):
                found.append(f"{page.relative_to(ROOT)}: {titles}")
    assert found == []


def test_the_evidence_of_the_hazards_of_gpus_exists():
    page, code = (ROOT / "docs" / "gpu.md").read_text(), "".join(file.read_text() for file in sorted((ROOT / "tests").rglob("test_*.py")))
    named, paths = set(re.findall(r"`(test_\w+)(?:\[\w+\])?`", page)), set(re.findall(r"`((?:tests|scripts)/[\w/]+\.\w+)`", page))
    assert len(named) > 20 and len(paths) > 8
    assert not [name for name in named if f"def {name}(" not in code]
    assert not [path for path in paths if not (ROOT / path).exists()]


LOADABLE = ("breakout", "gpu_check", "gpu_work", "reproduce", "results")
"""Scripts that import no package beyond those of warprun and of its tests."""


@pytest.mark.parametrize("name", LOADABLE)
def test_scripts_find_what_they_import(name):
    assert load(name).main.__module__ == name


def test_the_walk_through_ppo_quotes_what_stands_there() -> None:
    """Every reference names the line of its code, in six files at most."""
    source = load("source_tables")
    text = source.WALK.read_text()
    references = list(source.REFERENCE.finditer(text))
    assert len(references) == len(re.findall(r"#L\d+", text)) >= 12
    assert len({reference["file"] for reference in references}) <= 6
    assert source.numbered(text) == text, "run: python scripts/reproduce.py --write"
