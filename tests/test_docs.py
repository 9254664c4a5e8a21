"""The documentation is correct: examples run, commands are accepted, links exist, and tables match the schema."""

import json
import re
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

import warprun
from tests.commands import PAGES, ROOT, commands_of_page
from tests.selection import few
from warprun.config.compose import compose

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
"""An MPI program, which tests/test_external.py trains with several processes."""
QUICK = ("README-myenv", "environments-fishery", "external-lake", "external-tank")
EXAMPLES = [
    pytest.param(page, name, id=named, marks=[] if named in QUICK else pytest.mark.slow)
    for page in PAGES
    for name in files(page)
    if name.startswith("conf/env/") and name != PARALLEL
    for named in [f"{page.stem}-{Path(name).stem}"]
]


@pytest.mark.by_default(1)
@pytest.mark.parametrize(("page", "name"), EXAMPLES)
def test_example_environments_train(workplace, page, name):
    workplace(page)
    small = [setting for setting in SMALL if page.stem != "extending" or not setting.startswith("env.time_limit")]
    result = warprun.train([f"env={Path(name).stem}", "tuned=none", *small])
    assert result.status == "finished"
    assert result.env_steps == 32


def test_there_are_examples():
    assert len(EXAMPLES) >= 4


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


def test_tables_of_keys_are_those_of_the_schema(capsys):
    script = load("config_reference")
    for page in script.PAGES:
        assert script.rewritten(page) == page.read_text(), "run python scripts/config_reference.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_images_exist(page):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor and linked.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], f"{page.name}: #{anchor}"


def test_result_table_has_a_line_for_a_case():
    script = load("results")
    run = {"bar": -200.0, "return": -150.04, "return_stderr": 2.26, "env_steps": 1000, "wall_s": 2.0}
    line = script.row("pendulum_ppo", [run, run | {"return": -300.0}, run | {"return": -200.0}], 3)
    assert line == "| pendulum_ppo | -200 | 2/3 | -300.0 ± 2.3 | -200.0 ± 2.3 | 1,000 | 2.0 |\n"
    assert len(line.split("|")) == len(script.HEADER.splitlines()[0].split("|")) == len(script.row("x", [], 2).split("|"))
    for overrides in (script.CASES | script.robustness_cases(0.5)).values():
        compose(overrides)
    assert script.HEADER.splitlines()[0] in (ROOT / "docs" / "results.md").read_text()


def test_robustness_table_counts_the_seeds_that_learn():
    script = load("results")
    run = {"bar": 475.0, "return": 500.0}
    runs = {name: [run, run | {"return": 9.0}, run | {"return": 480.0}] for name in script.robustness_cases(1.0)}
    assert len(runs) == 2 * 10
    assert script.robustness_table(runs, 5).count("2/5 (480)") == 20


MARKS = {
    "docs/results.md": ("results", "robustness"),
    "docs/agents.md": ("equilibrium",),
    "docs/benchmarks/off_policy.md": ("results few", "results many"),
    "docs/benchmarks/catalysis.md": ("tuned", "continuous", "published"),
    "docs/booster.md": ("corrected", "compat"),
    "docs/memory.md": ("results",),
    "docs/reproductions.md": ("exarl claims", "exarl model"),
}
"""Page -> the tables that scripts write into it."""


@pytest.mark.parametrize("page", MARKS)
def test_pages_have_the_tables_that_scripts_write(page):
    for mark in MARKS[page]:
        assert len(re.findall(rf"<!-- {mark} -->\n\|.*?\n<!-- end -->", (ROOT / page).read_text(), flags=re.DOTALL)) == 1, mark


def test_scripts_write_into_pages_that_exist():
    assert load("catalysis_results").PAGE == ROOT / "docs/benchmarks/catalysis.md"
    off_policy, results, equilibrium = load("offpolicy_results"), load("results"), load("mixed_equilibrium")
    assert (off_policy.DOCS / "off_policy.md").exists() and off_policy.KEPT.exists()
    assert (results.DOCS / "results.md").exists() and (results.DOCS / "benchmarks" / "results.json").exists()
    assert equilibrium.PAGE.exists()
    assert (load("booster_results").DOCS / "booster.md").exists()


def load(name: str):
    spec = util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec and spec.loader
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_walk_through_ppo_quotes_what_stands_there() -> None:
    """Every reference names the line of its code, in six files at most."""
    walkthrough = load("walkthrough")
    text = walkthrough.PAGE.read_text()
    references = list(walkthrough.REFERENCE.finditer(text))
    assert len(references) == len(re.findall(r"#L\d+", text)) >= 12
    assert len({reference["file"] for reference in references}) <= 6
    assert walkthrough.numbered(text) == text, "run: python scripts/walkthrough.py --write"
