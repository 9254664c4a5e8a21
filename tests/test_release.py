"""Files for those who install, cite or build warprun: they can be read, name what exists, and agree with setup.cfg."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
PYTHON = ("3.11", "3.12")


def extras(text: str) -> set[str]:
    """Return the extras with which a file installs the checkout."""
    return set(re.findall(r'"/opt/warprun\[([\w,]+)\]"', text)[0].split(","))


def test_the_citation_names_this_version() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert found.keys() >= {"cff-version", "message", "title", "authors", "type"}
    assert (found["version"], found["license"]) == (SETUP["metadata"]["version"], SETUP["metadata"]["license"])


def test_the_changelog_begins_with_this_version_and_its_day() -> None:
    found = re.search(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert found and found.groups() == (SETUP["metadata"]["version"], str(citation["date-released"]))


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
    assert fields.keys() == {"Bootstrap", "From"} and fields["From"] == f"python:{PYTHON[-1]}-slim"
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
