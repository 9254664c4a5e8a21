"""What is installed: the packages and data files of setup.cfg, the public names, and which files an import finds."""

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"warprun": "warprun", "conf": "warprun.conf", "envs": "warprun.envs"}
"""Folder of a checkout -> the package that it is installed as."""
TEMPLATES = {file for file in (ROOT / "warprun" / "templates").rglob("*.py") if "__pycache__" not in file.parts}
"""Python files that are data of the package: `warprun new` makes projects of them."""


@pytest.fixture(scope="module")
def setup() -> configparser.ConfigParser:
    """Return what setup.cfg says."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def package_of(folder: Path) -> str:
    """Return the name of the package that the files of a folder of the checkout are installed into."""
    top, *inner = folder.relative_to(ROOT).parts
    return ".".join([FOLDERS[top], *inner])


def test_every_package_is_listed_and_has_an_init_file(setup: configparser.ConfigParser) -> None:
    files = {file for top in FOLDERS for file in (ROOT / top).rglob("*.py") if "__pycache__" not in file.parts} - TEMPLATES
    listed = setup["options"]["packages"].split()
    assert sorted(listed) == sorted({package_of(file.parent) for file in files})
    assert set(listed) == {package_of(file.parent) for file in files if file.name == "__init__.py"}


def test_every_data_file_is_listed(setup: configparser.ConfigParser) -> None:
    listed = set()
    for package, patterns in setup["options.package_data"].items():
        folder = next(ROOT / top for top, name in FOLDERS.items() if name == package)
        matching = [set(folder.glob(pattern)) for pattern in patterns.strip().splitlines()]  # as setuptools does
        assert all(matching), f"{package}: a pattern of {patterns!r} matches no file"
        listed |= set().union(*matching)
    others = {
        file
        for top in FOLDERS
        for file in (ROOT / top).rglob("*")
        if file.is_file() and file.suffix != ".py" and "__pycache__" not in file.parts
    } | TEMPLATES
    assert listed == others
    assert ROOT / "warprun" / "py.typed" in listed


def python(code: str, folder: Path, path: Path | None = ROOT) -> str:
    """Run `code` in a new process in `folder`, with `path` on the module path; return what it printed."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"} | ({"PYTHONPATH": str(path)} if path else {})
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_public_names_are_listed_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    code = """
import rlcompleter, sys, warprun
assert {"train", "results", "load", "make_vec", "make_parallel", "make_sb3"} == {name for name in warprun.__all__ if name.islower()}
assert {"Policy", "Result", "UserError", "TrainingFailed"} < set(warprun.__all__)
assert set(warprun.__all__) | {"environment", "math", "random", "data", "errors"} <= set(dir(warprun))
assert warprun.environment.Discrete(2).n == 2 and warprun.random.normal and warprun.math.sin
print(sorted({"torch", "numba", "hydra"} & set(sys.modules)))
completer = rlcompleter.Completer({"warprun": warprun})
completer.complete("warprun.tr", 0)
assert any(match.startswith("warprun.train") for match in completer.matches)
assert all(hasattr(warprun, name) for name in dir(warprun) if not name.startswith("_")) and not hasattr(warprun, "trian")
"""
    assert python(code, tmp_path) == "[]\n"


WHERE = """
import sys, warprun
from pathlib import Path
from warprun.config.compose import compose
config = compose(["env=pendulum", "agent=td3"])
assert config.agent.utd_ratio == 1.0 or config.origin.tuned == "pendulum_td3"
import warprun.conf, warprun.envs.pendulum
print(*(Path(package.__path__[0]) for package in (warprun, warprun.conf, warprun.envs)))
"""


def copy(folder: Path) -> None:
    """Put what a checkout has into `folder`."""
    for top in FOLDERS:
        shutil.copytree(ROOT / top, folder / top, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.by_default(2)
@pytest.mark.parametrize("surroundings", ["empty", "checkout", "copy of a checkout", "conf of another project"])
def test_works_in_any_folder(surroundings: str, tmp_path: Path) -> None:
    if surroundings == "copy of a checkout":
        copy(tmp_path)
    if surroundings == "conf of another project":
        (tmp_path / "conf" / "db").mkdir(parents=True)
        (tmp_path / "conf" / "config.yaml").write_text("defaults:\n  - db: mysql\nport: 8080\n")
        (tmp_path / "conf" / "db" / "mysql.yaml").write_text("host: localhost\n")
        (tmp_path / "envs").mkdir()
        (tmp_path / "envs" / "pendulum.py").write_text("raise RuntimeError('not this one')\n")
    # As a script of the user: Python looks beside the script first, not in the working folder.
    code = "import sys; sys.path.pop(0)\n" + WHERE
    assert python(code, ROOT if surroundings == "checkout" else tmp_path).split() == [str(ROOT / top) for top in FOLDERS]


def test_a_copy_of_a_checkout_uses_its_own_files(tmp_path: Path) -> None:
    copy(tmp_path)
    assert python(WHERE, tmp_path, path=None).split() == [str(tmp_path / top) for top in FOLDERS]


def test_an_installed_package_ignores_folders_beside_it(tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(ROOT / "warprun", site / "warprun", ignore=shutil.ignore_patterns("__pycache__"))
    for top in ("conf", "envs"):
        shutil.copytree(ROOT / top, site / "warprun" / top, ignore=shutil.ignore_patterns("__pycache__"))
        (site / top).mkdir()
        (site / top / "__init__.py").write_text("raise RuntimeError('not this one')\n")
    (site / "conf" / "warprun.yaml").touch()
    (tmp_path / "elsewhere").mkdir()
    code = WHERE + f"\nassert list(warprun.__path__) == [{str(site / 'warprun')!r}], warprun.__path__"
    assert python(code, tmp_path / "elsewhere", path=site).split() == [str(site / "warprun" / inner) for inner in ("", "conf", "envs")]
