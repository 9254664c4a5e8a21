"""The check finds planted mistakes and names them, and finds nothing wrong with the environments that warprun ships."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.checking.planted import FILES, PLANTED, write
from tests.words import words
from warprun.checking.check import begin, check, check_here
from warprun.checking.findings import Finding
from warprun.config.compose import compose
from warprun.environment import Environment
from warprun.errors import UserError
from warprun.runs.build import set_up

OFTEN = ("swapped fields", "rare NaN", "variable set in one branch", "random of Python")
"""Mistakes that are always tested."""
CASES = [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in PLANTED]
SHIPPED = words("""
    cartpole mountain_car mountain_car_continuous pendulum acrobot t_maze catalysis catalysis_continuous covid
""")
SHIPPED += ("booster", "booster_continuous", "tag_gridworld", "tag_continuous")


def findings(overrides: list[str], processes: bool) -> list[Finding]:
    """Return what the check finds; without `processes` only what it finds in this process."""
    config = compose([*overrides, "device=cpu", "concurrency.threads=1"])
    if processes:
        return check(config, overrides)
    setup = set_up(replace(config))
    assert isinstance(setup.environment, Environment)
    return list(check_here(begin(setup, setup.environment)))


@pytest.mark.by_default(2)
@pytest.mark.parametrize("name", CASES)
def test_a_planted_mistake_is_found_and_named(name: str, tmp_path: Path) -> None:
    mistake = PLANTED[name]
    overrides = ["env=cartpole", f"env.module={write(mistake, tmp_path)}"]
    try:
        told = [finding.message for finding in findings(overrides, mistake.processes) if finding.verdict in ("warning", "failed")]
    except UserError as error:
        told = [str(error)]
    assert any(all(word in line for word in mistake.words) for line in told), told


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_files_without_a_mistake_pass(name: str) -> None:
    found = findings(["env=cartpole", f"env.module={FILES[name]}"], processes=False)
    assert not [finding for finding in found if finding.verdict == "failed"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_environments_pass(name: str) -> None:
    found = findings([f"env={name}"], processes=True)
    assert not [finding for finding in found if finding.verdict == "failed"]
