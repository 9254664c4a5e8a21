"""`.ci/run` does what README.md says: its commands, in an environment of their own, and nothing beside them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMANDS = [sys.executable, str(ROOT / ".ci" / "commands.py")]
INSTALL, RUN = 'pip install -c constraints.txt -e ".[test]"', "pytest -n auto --dist loadfile"
WRITES_DOWN = r"""#!/bin/bash
name="${0##*/}" folder="${0%/bin/*}"
printf '%s|' "${folder##*/}" "$name" "${WARPRUN_CACHE_DIR:-}" "$@" >> "$CALLS"
echo >> "$CALLS"
"""
"""A program of an environment: it writes down the environment, its name, the cache of kernels and its arguments."""
PYTHON = f"""#!/bin/bash
if [[ "$1 $2" == "-m venv" ]]; then
    mkdir -p "$3/bin"
    printf 'PATH="%s/bin:$PATH"\\n' "$3" > "$3/bin/activate"
    for name in pip pytest python ruff mypy warprun; do
        printf '%s' "$WRITES_DOWN" > "$3/bin/$name"
        chmod +x "$3/bin/$name"
    done
else
    exec "{sys.executable}" "$@"
fi
"""
"""A Python whose environments have such programs."""


def test_the_readme_has_the_commands_once() -> None:
    done = subprocess.run([*COMMANDS, str(ROOT / "README.md")], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [INSTALL, RUN]


@pytest.mark.parametrize("text", ["", f"- **Tests**: `{RUN}`\n", 2 * f"- **Tests**: `{INSTALL} && {RUN}`\n"])
def test_a_readme_without_them_is_told_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(text)
    done = subprocess.run([*COMMANDS, str(tmp_path / "README.md")], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert "README.md: one line has to begin with" in done.stderr and done.stderr.count("\n") == 1


def checkout(folder: Path, readme: str) -> Path:
    """Return a folder with what `.ci/run` needs of a checkout, and a README of its own."""
    made = folder / "checkout"
    shutil.copytree(ROOT / ".ci", made / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
    (made / "README.md").write_text(readme)
    subprocess.run(["git", "init", "-q", str(made)], check=True)
    return made


def ran(folder: Path, readme: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """Run `.ci/run` in a checkout with this README; return how it ended, and what its environments were asked."""
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    calls = folder / "calls"
    calls.touch()
    environment = os.environ | {
        "PYTHON": str(folder / "python"),
        "CALLS": str(calls),
        "WRITES_DOWN": WRITES_DOWN,
        "WARPRUN_CACHE_DIR": "a cache of this machine",
    }
    run = ["bash", str(checkout(folder, readme) / ".ci" / "run")]
    done = subprocess.run(run, env=environment, capture_output=True, text=True)
    return done, [line.split("|")[:-1] for line in calls.read_text().splitlines()]


def test_the_commands_of_the_readme_run_alone_in_their_environment(tmp_path: Path) -> None:
    _, calls = ran(tmp_path, '- **Tests**: `pip install -e ".[some, tests]" && pytest -n 3 "a b"`. More.\n')
    assert [call[1:] for call in calls if call[0] == "readme"] == [
        ["pip", "", "install", "-e", ".[some, tests]"],
        ["pytest", "", "-n", "3", "a b"],
    ]
    others = [call[1:2] + call[3:] for call in calls if call[0] == "all" and call[1] in ("pip", "pytest")]
    assert ["pip", "install", "--quiet", "-c", "constraints.txt", "-e", ".[test,ptx,docs]"] in others
    assert others[-1][0] == "pytest" and others[-1][-1] == "(ptx or long) and not slow"


def test_nothing_runs_without_the_commands_of_the_readme(tmp_path: Path) -> None:
    done, calls = ran(tmp_path, "# Nothing about tests\n")
    assert done.returncode == 2 and not calls
    assert done.stderr.count("\n") == 1 and "README.md: one line has to begin with" in done.stderr
