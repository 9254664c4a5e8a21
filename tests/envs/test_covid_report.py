"""What `warprun eval` leaves of a covid run."""

import csv

import pytest

import warprun
from tests.playing.plays import look_at
from warprun.cli.main import run
from warprun.runs.records import tensorboard

SMALL = ["env=covid", "tuned=none", "total_steps=16", "n_envs=2", "agent.horizon=8", "agent.minibatches=1", "eval.episodes=1"]


@pytest.mark.slow
def test_evaluation_writes_tables_and_figures(covid_data, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "run"
    warprun.train([*SMALL, "env.time_limit=40", "log.live=false", f"run_dir={folder}"])
    assert run(["eval", str(folder), "episodes=1"]) == 0
    said = capsys.readouterr().out
    assert "not for real policy making" in said
    with open(folder / "eval" / "states.csv") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 41 * 51
    assert (lines[0]["date"], lines[0]["state"], lines[0]["stringency"]) == ("2020-03-22", "Alabama", "5")
    with open(folder / "eval" / "policies.csv") as file:
        policies = {line["policy"]: line for line in csv.DictReader(file)}
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
def test_films_show_the_course_of_the_country(covid_data, tmp_path):
    pytest.importorskip("matplotlib")
    look_at(tmp_path / "a.gif", "env=covid", "env.time_limit=40")


def test_images_reach_tensorboard(tmp_path):
    """The file is read back by TensorBoard itself."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for _ in range(2):
        tensorboard.write_images(tmp_path)
    assert len(list(tmp_path.glob("events*"))) == 1
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [found.Images(tag)[0].encoded_image_string for tag in found.Tags()["images"]] == [b"\x89PNG\r\n\x1a\n"]
