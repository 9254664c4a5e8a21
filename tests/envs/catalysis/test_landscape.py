"""Surfaces from files and options: what is refused, in one line and with exit code 2, and what is fetched."""

import io

import numpy as np
import pytest

from tests.envs.catalysis.helpers import environment, needs_grids
from warprun import data
from warprun.envs.catalysis import fetch_data, surfaces
from warprun.envs.catalysis.landscape import SCENARIOS, fewest_steps, landscape
from warprun.errors import UserError

OWN = ["env.start=[0,0,0]", "env.goal=[2,1,1]"]


def grid(folder, change=lambda energy: energy):
    path = folder / "pes.npy"
    np.save(path, change(np.random.default_rng(0).uniform(0.0, 1.0, (4, 5, 3))))
    return path


def with_value(value):
    def change(energy):
        energy[1, 2, 1] = value
        return energy

    return change


def ends_lowest(energy):
    energy[0, 0, 0] = -1.0
    return energy


BAD = {
    "two dimensions": (lambda e: e[0], OWN, "has shape (5, 3); a surface is an array [x, y, z]"),
    "NaN": (with_value(np.nan), OWN, "1 of 60 energies are not finite"),
    "far below": (with_value(-1.9e11), OWN, "cells lie below the reference 0.525354, down to -1.9e+11"),
    "complex": (lambda e: e * 1j, OWN, "is no .npy file of real numbers"),
    "objects": (lambda e: np.array([[[None]]], object), OWN, "is no .npy file of numbers"),
    "no start": (ends_lowest, OWN[1:], "env.start is missing"),
    "no goal": (ends_lowest, OWN[:1], "env.goal is missing"),
    "start outside": (ends_lowest, ["env.start=[4,0,0]", OWN[1]], "env.start=[4, 0, 0] lies outside the surface, 0..3, 0..4, 0..2"),
    "goal is the start": (ends_lowest, [OWN[0], "env.goal=[0,0,0]"], "are the same cell, [0, 0, 0]"),
    "start of two numbers": (ends_lowest, ["env.start=[0,0]", OWN[1]], "env.start=[0, 0] must be three whole numbers"),
    "out of reach": (ends_lowest, [*OWN, "env.time_limit=3"], "cannot be reached: it is 4 moves from the start, env.time_limit=3"),
    "scale": (ends_lowest, [*OWN, "env.energy_scale=0"], "env.energy_scale=0 must be above 0"),
    "reward": (ends_lowest, [*OWN, "env.goal_reward=much"], "env.goal_reward=much must be a finite number"),
    "periodic": (ends_lowest, [*OWN, "env.periodic=3"], "env.periodic=3 must be true or false"),
    "observation": (ends_lowest, [*OWN, "env.observation=all"], "there is no such observation"),
    "scenario": (ends_lowest, ["env.scenario=lhh"], "env.scenario=lhh: there is no such scenario"),
    "option": (ends_lowest, ["env.scenerio=lh"], "no option 'scenerio'; did you mean 'scenario'?"),
    "shape of the scenario": (ends_lowest, ["env.scenario=lh"], "has shape (4, 5, 3); env.scenario=lh needs (20, 18, 20)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case, tmp_path, monkeypatch, refusal):
    change, arguments, message = BAD[case]
    monkeypatch.chdir(tmp_path)
    path = grid(tmp_path, change)
    assert message in refusal("env=catalysis", f"env.pes={path.name}", *arguments)
    assert [file.name for file in tmp_path.iterdir()] == ["pes.npy"]


@pytest.mark.parametrize("content", [b"", b"no array", b"PK\x03\x04"])
def test_other_files_are_refused(content, tmp_path):
    path = tmp_path / "pes.npy"
    path.write_bytes(content)
    with pytest.raises(UserError, match="npy file"):
        surfaces.read(path)
    with pytest.raises(UserError, match="No such file"):
        surfaces.read(tmp_path / "other.npy")


def test_a_surface_of_ones_own(tmp_path):
    made = landscape(pes=str(grid(tmp_path, ends_lowest)), start=[0, 0, 0], goal=[3, 1, 1])
    assert made.reference == -1.0
    assert fewest_steps(made) == 3
    assert fewest_steps(made._replace(periodic=False)) == 5
    below = landscape(
        pes=str(grid(tmp_path, with_value(-9.0))), start=[0, 0, 0], goal=[3, 1, 1], reference=0.0, accept_below_reference=True
    )
    assert below.relative.min() == -9.0


@needs_grids
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_can_be_made(scenario):
    assert environment(scenario=scenario).tables().energy.min() >= 0.0


@needs_grids
def test_fe111_is_the_surface_of_lh():
    np.testing.assert_array_equal(landscape(pes="fe111").energy, landscape("lh").energy)
    with pytest.raises(UserError, match="is not the surface of"):
        landscape("lh", pes="leps")


def test_missing_grids_tell_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("WARPRUN_DATA_DIR", str(tmp_path))
    with pytest.raises(UserError, match="`warprun data catalysis` fetches it"):
        landscape("lh")


@needs_grids
def test_data_is_fetched_once_and_checked(tmp_path, monkeypatch):
    published = data.folder("catalysis")
    asked = []

    def answer(url, timeout):
        name = url.rpartition("/")[2]
        asked.append(name)
        return io.BytesIO((published / name).read_bytes())

    monkeypatch.setenv("WARPRUN_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(surfaces.urllib.request, "urlopen", answer)
    assert fetch_data() == tmp_path / "catalysis"
    assert sorted(asked) == sorted(surfaces.PUBLISHED)
    landscape("lh")
    fetch_data()
    assert len(asked) == len(surfaces.PUBLISHED)
    changed = tmp_path / "catalysis" / "en_array.npy"
    changed.write_bytes(changed.read_bytes()[:-1] + b"x")
    for use in (fetch_data, lambda: landscape("lh")):
        with pytest.raises(UserError, match="is not the published file"):
            use()


def test_an_altered_download_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("WARPRUN_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(surfaces.urllib.request, "urlopen", lambda url, timeout: io.BytesIO(b"other"))
    with pytest.raises(UserError, match="is not the published file"):
        fetch_data()
    assert not list(tmp_path.rglob("*.npy"))
