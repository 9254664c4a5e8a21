"""What an evaluation of a booster run leaves, and the numbers of scripts/compare/booster.py."""

import csv

import numpy as np
import pytest

import warprun
from tests.envs.booster.helpers import engine
from tests.scripts import load
from warprun.cli.main import run
from warprun.envs.booster import analysis
from warprun.state import derived_seed

SMALL = ["tuned=none", "total_steps=64", "n_envs=2", "agent.horizon=8", "agent.minibatches=1", "eval.episodes=1", "log.live=false"]


def test_the_spectrum_has_the_variance_of_the_course():
    draws = np.random.default_rng(0).normal(0.3, 0.05, 9010)
    frequency, power = analysis.spectrum(draws)
    assert frequency[-1] == 7.5
    assert power.sum() * frequency[1] == pytest.approx(draws.var(), rel=0.05)
    assert power[3:-3].mean() == pytest.approx(draws.var() / 7.5, rel=0.05)
    wave = 0.2 * np.sin(2 * np.pi * np.arange(900) / 10)
    frequency, power = analysis.spectrum(wave)
    assert frequency[power.argmax()] == pytest.approx(1.5)
    assert power.sum() * frequency[1] == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("length", [0, 1, 2, 7, 150, 151])
def test_a_short_course_has_a_short_spectrum(length):
    frequency, power = analysis.spectrum(np.arange(float(length)))
    assert len(frequency) == len(power) == (min(length, 150) // 2 + 1 if length > 1 else 0)
    assert np.isfinite(power).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [["env=booster"], ["env=booster_continuous", "env.history=1"], ["env=booster", "env.mode=compat"]], ids=str
)
def test_evaluation_writes_tables_and_figures(options, tmp_path, capsys):
    folder = tmp_path / "run"
    warprun.train([*options, *SMALL, f"run_dir={folder}"])
    assert run(["eval", str(folder), "episodes=2"]) == 0
    said = capsys.readouterr().out
    assert "surrogate" in said and "no digital twin" in said
    with open(folder / "eval" / "regulation.csv") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 901 if "env.mode=compat" not in options else len(lines) > 0
    with open(folder / "eval" / "regulators.csv") as file:
        found = {line["regulator"]: line for line in csv.DictReader(file)}
    assert list(found) == ["learned", "PI, published gains", "PID, best gains", "best quadratic", "no control"]
    errors = {name: float(line["mean_magnitude_iminer"]) for name, line in found.items()}
    if "env.mode=compat" not in options:  # there courses end at different times
        assert errors["best quadratic"] < errors["PI, published gains"]
    learned = np.array([float(line["IMINER learned"]) for line in lines if line["IMINER learned"]])
    assert np.abs(learned).mean() == pytest.approx(errors["learned"], abs=1e-4)
    if "matplotlib" not in said:
        assert {file.stem for file in (folder / "eval").glob("*.png")} == {"regulation", "spectrum"}


@pytest.fixture
def script():
    return load("compare.booster")


def test_features_are_what_an_agent_could_know(script):
    """The newest disturbance before each step, found from observations where the episode has not begun, and a constant."""
    found = script.record(6, 4, "corrected")
    newest = found.features[:, :, script.HISTORY - script.WARM - 1]
    np.testing.assert_allclose(newest[:, 1:], found.episodes.disturbance[:, :-1], atol=1e-12)
    before = engine(6, action="continuous", seed=derived_seed(4, "eval")).state_of("agent")["disturbance"].numpy().reshape(6)
    np.testing.assert_allclose(newest[:, 0], before, atol=1e-4)
    assert (found.features[..., -1] == 1).all()
    assert found.features.shape[2] == 13 + 45 + 1
