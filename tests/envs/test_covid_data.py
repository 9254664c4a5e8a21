"""Where the data of the COVID-19 economy come from, what becomes of bad ones, and what bad settings say."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

import warprun
from tests.playing.plays import look_at, rows
from tests.scripts import load
from warprun.cli.main import run
from warprun.config.compose import compose
from warprun.config.schema import load_environment
from warprun.envs.covid import data, model, tables
from warprun.errors import UserError
from warprun.runs.evaluation import evaluate_run
from warprun.runs.records import tensorboard


@pytest.fixture(scope="module", autouse=True)
def cached(covid_data: Path) -> Path:
    return covid_data


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("WARPRUN_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{tmp_path}/nothing")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    data.load.cache_clear()
    yield tmp_path / "covid"
    data.load.cache_clear()


def wheel(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / data.WHEEL, "w") as archive:
        for name, content in contents.items():
            archive.writestr(f"{data.SOURCE}/{name}", content)
    return folder / data.WHEEL


def test_numbers_of_the_data():
    found = data.load()
    assert (found.states[[0, 4, 50]] == ["Alabama", "California", "Wyoming"]).all()
    assert found.population.sum() == found.us_population == 328737916
    assert found.filter_weight[0, 0] == -0.8623685240745544  # Alabama's, in the published table
    assert found.filter_weight[4, 0] == 1.3083926439285278
    assert found.unemployed[81, 4] == pytest.approx(1778050.035)
    assert (found.payment[found.payment > 0] == [274e9, 142e9, 386e9]).all()
    fades = (model.FADE_1, model.FADE_2, model.FADE_3, model.FADE_4, model.FADE_5)
    np.testing.assert_allclose(fades, np.exp(-1 / found.filter_time), rtol=0, atol=5e-9)
    assert tables.output(found)[0] == pytest.approx(320.806, abs=5e-4)
    assert tables.output(found)[1].sum() == pytest.approx(5.881e10, rel=1e-4)


def test_offline_it_says_what_to_do_and_leaves_nothing(empty_cache, capsys):
    with pytest.raises(UserError, match="pip download --no-deps ai-economist") as told:
        data.fetch_data()
    assert "\n" not in str(told.value)
    assert not empty_cache.exists()
    assert run(["data", "covid"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_altered_truncated_and_incomplete_archives_are_refused(empty_cache):
    given = wheel(empty_cache, dict.fromkeys(data.FILES, b"altered"))
    with pytest.raises(UserError, match=r"fitted_params.json in .* is not the published file"):
        data.fetch_data()
    whole = given.read_bytes()
    for name in data.FILES:
        with pytest.raises(UserError, match=f"{name} in .* is not the published file"):
            data._member(given, name, data.FILES[name])
    wheel(empty_cache, {})
    with pytest.raises(UserError, match="no whole ai-economist"):
        data.fetch_data()
    given.write_bytes(whole[:200])
    with pytest.raises(UserError, match="no whole ai-economist"):
        data.fetch_data()
    assert sorted(path.name for path in empty_cache.iterdir()) == [data.WHEEL]


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_damaged_cache_is_refused(cached, empty_cache, damage):
    empty_cache.mkdir()
    path = empty_cache / data.CACHED
    if damage == "truncated":
        path.write_bytes(cached.read_bytes()[:1000])
    else:
        with np.load(cached) as arrays:
            np.savez(path, **(dict(arrays) | {"population": arrays["population"] + 1}))
    with pytest.raises(UserError, match="delete it and run `warprun data covid`"):
        data.load()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("options.start=2020-13-01", "env.options.start=2020-13-01 is no date"),
        ("options.start=2019-12-01", "an episode from 2020-02-21 to 2021-04-30"),
        ("options.start=2022-01-01", "an episode from 2020-02-21 to 2021-04-30"),
        ("options.vaccine_start=soon", "env.options.vaccine_start=soon is no date"),
        ("options.vaccine_interval=0", "env.options.vaccine_interval=0"),
        ("options.replay=everything", "one of none, subsidy, stringency, policies, data"),
        ("options.observe_vaccination_rate=1", "true or false"),
        ("options.begin=2020-03-22", "no option 'begin'"),
        ("time_limit=601", "at most 600 days"),
        ("time_limit=438 env.options.replay=policies", "with replay=policies from 2020-03-22 the data have 437 days"),
        ("time_limit=405 env.options.replay=data", "with replay=data from 2020-03-22 the data have 404 days"),
    ],
)
def test_bad_options_are_told_in_one_line_before_a_run(given, said):
    with pytest.raises(UserError, match=said) as told:
        load_environment(compose(["env=covid", *f"env.{given}".split()]).env)[0].make_tables()
    assert "\n" not in str(told.value)


# What `warprun eval` leaves of a covid run, and the numbers of scripts/compare/covid.py ----------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return a run whose episodes are no multiple of what is collected at once."""
    small = ["env=covid", "tuned=none", "total_steps=16", "n_envs=2", "agent.horizon=8", "agent.minibatches=1", "eval.episodes=1"]
    return warprun.train([*small, "env.time_limit=100", "log.live=false", f"run_dir={tmp_path_factory.mktemp('covid')}/run"]).folder


@pytest.mark.slow
def test_evaluation_writes_tables_and_figures(trained, capsys):
    folder = trained
    assert run(["eval", str(folder), "episodes=1"]) == 0
    said = capsys.readouterr().out
    assert "not for real policy making" in said
    lines = rows(folder / "eval" / "states.csv")
    assert len(lines) == 101 * 51
    assert (lines[0]["date"], lines[0]["state"], lines[0]["stringency"]) == ("2020-03-22", "Alabama", "5")
    policies = {line["policy"]: line for line in rows(folder / "eval" / "policies.csv")}
    assert list(policies) == ["learned", "always open", "always closed", "historical"]
    assert int(policies["always open"]["deaths"]) > int(policies["always closed"]["deaths"])
    figures = sorted(path.stem for path in (folder / "eval").glob("*.png"))
    if "matplotlib" in said:
        assert figures == []
        return
    assert figures == ["health_economy", "policies_over_time", "states_over_time"]
    (events,) = (folder / "eval").glob("events.out.tfevents.*")
    assert events.read_bytes().count(b"\x89PNG") == 3


@pytest.mark.slow
def test_films_show_the_course_of_the_country(tmp_path):
    pytest.importorskip("matplotlib")
    look_at(tmp_path / "a.gif", "env=covid", "env.time_limit=40")


def test_images_reach_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for _ in range(2):
        tensorboard.write_images(tmp_path)
    assert len(list(tmp_path.glob("events*"))) == 1
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [found.Images(tag)[0].encoded_image_string for tag in found.Tags()["images"]] == [b"\x89PNG\r\n\x1a\n"]


@pytest.mark.slow
def test_returns_are_those_of_the_evaluation(trained, monkeypatch):
    script = load("compare.covid")
    monkeypatch.setattr(script, "EPISODES", 20)
    found = script.returns(trained)
    best = found["trained, most probable actions"]
    expected = evaluate_run(trained, episodes=1, greedy=True, device="cpu", seed=0)
    assert [best[group].item() for group in script.GROUPS] == pytest.approx([expected[f"{group}/return"] for group in script.GROUPS])
    drawn = found["untrained"]["payments"]  # in 100 days twice one of 21 levels, nearly uniform
    assert set(drawn * 2) <= set(range(41)) and abs(drawn.mean() - 10) < 4
    # The same random numbers: a gain varies less than what it is the difference of.
    assert found["trained - untrained"]["governors"].std() < found["untrained"]["governors"].std() / 2
