"""Files for those who install, cite or build warprun: they can be read, name what exists, and agree with setup.cfg."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
PYTHON = ("3.11", "3.12", "3.13")


def extras(text: str) -> set[str]:
    """Return the extras with which a file installs the checkout."""
    return set(re.findall(r'"/opt/warprun\[([\w,]+)\]"', text)[0].split(","))


def test_the_citation_and_the_changelog_name_this_version_and_its_day() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation.keys() >= {"cff-version", "message", "title", "authors", "type"}
    assert (citation["version"], citation["license"]) == (SETUP["metadata"]["version"], SETUP["metadata"]["license"])
    found = re.search(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert found and found.groups() == (citation["version"], str(citation["date-released"]))


def test_the_workflow_runs_the_checks_on_linux_and_macos() -> None:
    found = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert found.keys() >= {"name", True, "jobs"}  # YAML 1.1 reads `on` as true
    matrix = found["jobs"]["run"]["strategy"]["matrix"]
    assert set(matrix["os"]) == {"ubuntu-latest", "ubuntu-24.04-arm", "macos-latest"}
    assert set(matrix["python"]) == set(PYTHON)
    steps = [step for job in found["jobs"].values() for step in job["steps"]]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    ran = "\n".join(step.get("run", "") for step in steps)
    for file in (".ci/run", ".ci/release", "apptainer.def"):
        assert file in ran and (ROOT / file).is_file()
    for script in filter(None, (step.get("run") for step in steps)):
        subprocess.run(["bash", "-n", "-c", script], check=True)


def test_the_recipe_of_conda_needs_what_setup_says() -> None:
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
    context = recipe["context"]
    run = [line.replace("${{ python_min }}", context["python_min"]).split() for line in recipe["requirements"]["run"]]
    found = {name: set(versions.split(",")) for name, versions in run}
    wanted = [Requirement(line) for line in SETUP["options"]["install_requires"].split("\n") if line]
    names = {"torch": "pytorch"}  # on conda-forge
    needed = {names.get(each.name, each.name): {str(version) for version in each.specifier} for each in wanted}
    assert found == needed | {"python": set(SETUP["options"]["python_requires"].split(","))}
    assert context["version"] == SETUP["metadata"]["version"] and recipe["about"]["license"] == SETUP["metadata"]["license"]
    assert recipe["about"]["summary"] == SETUP["metadata"]["description"] and (ROOT / recipe["about"]["license_file"]).is_file()
    assert recipe["build"]["python"]["entry_points"] == SETUP["options.entry_points"]["console_scripts"].strip().splitlines()
    build_system = (ROOT / "pyproject.toml").read_text()
    (setuptools,) = (line.split()[1] for line in recipe["requirements"]["host"] if line.startswith("setuptools "))
    assert f'"setuptools{setuptools}"' in build_system


@pytest.mark.parametrize("given", [[], ["one", "two"], ["."]])
def test_a_release_goes_into_a_new_folder(given: list[str]) -> None:
    done = subprocess.run(["bash", ROOT / ".ci" / "release", *given], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(".ci/release: ") and done.stderr.count("\n") == 1


def test_the_dockerfile_installs_the_checkout() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    parts = [tuple(line.split(maxsplit=1)) for line in lines]
    known = {"FROM", "COPY", "RUN", "ENV", "WORKDIR", "ENTRYPOINT"}
    assert {name for name, _ in parts} == known and parts[0][0] == "FROM"
    assert re.fullmatch(r"python:(\S+)-slim", parts[0][1])[1] in PYTHON  # type: ignore[index]
    assert extras(text) <= set(SETUP["options.extras_require"])
    for command in (value for name, value in parts if name == "RUN"):
        subprocess.run(["bash", "-n", "-c", command], check=True)
    copied_to = dict(parts)["COPY"].split()[1]
    for file in re.findall(rf"{copied_to}/([\w.]+)", text):
        assert (ROOT / file).is_file()
    assert "-c /opt/warprun/constraints.txt" in text  # the versions that are tested


def test_the_apptainer_recipe_installs_the_checkout_for_cuda() -> None:
    text = (ROOT / "apptainer.def").read_text()
    header, *sections = re.split(r"^%(\w+)$", text, flags=re.MULTILINE)
    fields = dict(line.split(": ") for line in header.splitlines() if line and not line.startswith("#"))
    assert fields.keys() == {"Bootstrap", "From"} and fields["From"] in {f"python:{each}-slim" for each in PYTHON}
    found = dict(zip(sections[::2], sections[1::2], strict=True))
    assert found.keys() == {"files", "post", "environment", "runscript", "test"}
    assert "cuda12" in extras(found["post"]) <= set(SETUP["options.extras_require"])
    source, place = found["files"].split()
    assert source == "." and f"-c {place}/constraints.txt" in found["post"] and (ROOT / "constraints.txt").is_file()
    for name in ("post", "environment", "runscript", "test"):
        subprocess.run(["sh", "-n"], input=found[name], text=True, check=True)


@pytest.mark.skipif(shutil.which("docker") is None, reason="needs docker")
@pytest.mark.slow
def test_docker_finds_nothing_to_complain_about() -> None:
    subprocess.run(["docker", "build", "--check", "."], cwd=ROOT, check=True)


# `.ci/run` does what README.md says: its commands, in an environment of their own, and nothing beside them -------------

INSTALL, RUN = 'pip install -c constraints.txt -e ".[test]"', "pytest -n auto --dist loadfile"
WRITES_DOWN = r"""#!/bin/bash
name="${0##*/}" folder="${0%/bin/*}"
printf '%s|' "${folder##*/}" "$name" "${WARPRUN_CACHE_DIR:-}" "$@" >> "$CALLS"
echo >> "$CALLS"
"""
"""A program of an environment: it writes down the environment, its name, the cache of kernels and its arguments."""
STAND_IN = f"""#!/bin/bash
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
    done = subprocess.run([sys.executable, ROOT / ".ci" / "commands.py", ROOT / "README.md"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [INSTALL, RUN]


def ran(folder: Path, readme: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """Run `.ci/run` in a checkout with this README; return how it ended, and what its environments were asked."""
    (folder / "python").write_text(STAND_IN)
    (folder / "python").chmod(0o755)
    calls, checkout = folder / "calls", folder / "checkout"
    calls.touch()
    shutil.copytree(ROOT / ".ci", checkout / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / "README.md").write_text(readme)
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    given = {"PYTHON": str(folder / "python"), "CALLS": str(calls), "WRITES_DOWN": WRITES_DOWN, "WARPRUN_CACHE_DIR": "of this machine"}
    done = subprocess.run(["bash", str(checkout / ".ci" / "run")], env=os.environ | given, capture_output=True, text=True)
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


@pytest.mark.parametrize("readme", ["", f"- **Tests**: `{RUN}`\n", 2 * f"- **Tests**: `{INSTALL} && {RUN}`\n"])
def test_nothing_runs_without_the_commands_of_the_readme(readme: str, tmp_path: Path) -> None:
    done, calls = ran(tmp_path, readme)
    assert done.returncode == 2 and not calls
    assert done.stderr.count("\n") == 1 and "README.md: one line has to begin with" in done.stderr
