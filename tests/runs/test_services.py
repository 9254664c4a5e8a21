"""Weights & Biases and MLflow, offline: what they receive, and that training goes on without them."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import warprun
from warprun.cli import main as cli
from warprun.runs.records.services import read_id, write_id

SMALL = ["n_envs=8", "total_steps=256", "tuned=none", "eval.episodes=2", "device=cpu", "concurrency.threads=1", "log.live=false"]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list]:
    """Let MLflow write files here; return a function that reads all its runs."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)

    def read() -> list:
        client = mlflow.MlflowClient()
        return client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])

    return read


def test_mlflow_gets_the_config_the_rows_and_the_outcome_as_one_run_that_continues(store) -> None:
    mlflow = pytest.importorskip("mlflow")
    warprun.train([*SMALL, "log.services=[mlflow]", "log.project=poles", "run_dir=mine"])
    result = warprun.train(["resume=mine", "total_steps=512"])
    (run,) = store()
    assert run.info.run_name == "mine" and run.info.status == "FINISHED"
    assert run.data.params["n_envs"] == "8" and run.data.params["agent.name"] == "ppo"
    assert run.data.tags["status"] == "finished"
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert run.data.metrics["eval/return"] == pytest.approx(rows[-1]["eval/return"])
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "wall_s")
    assert [(point.step, point.value) for point in history] == [(row["env_steps"], pytest.approx(row["wall_s"], abs=1e-3)) for row in rows]
    assert mlflow.MlflowClient().get_experiment(run.info.experiment_id).name == "poles"


@pytest.mark.by_default(0)
def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    warprun.train([*SMALL, "log.services=[wandb]", "log.project=poles", "run_dir=mine"])
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    found = (tmp_path / "mine" / "wandb.id").read_text().strip()
    assert kept.stem == f"run-{found}"
    expected = (b"poles", b"eval/return", b"agent.learning_rate", b"env_steps", b'"finished"')
    end = time.monotonic() + 20
    while missing := [text for text in expected if text not in kept.read_bytes()]:  # another process writes the file
        assert time.monotonic() < end, missing
        time.sleep(0.1)


def test_a_service_that_fails_warns_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlflow.MlflowClient.__init__", lambda self: (_ for _ in ()).throw(RuntimeError("no\nserver")))
    assert cli.run([*SMALL, "log.services=[mlflow]", "run_dir=mine", "log.every=1 iterations"]) == 0
    told = capfd.readouterr().err
    assert told.count("warning") == 1
    assert "warning: mlflow: RuntimeError: no server; training goes on, with gaps in the records" in told
    assert json.loads((tmp_path / "mine" / "status.json").read_text())["state"] == "finished"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["log.services=[wandbb]"], "log.services=wandbb is not one of wandb, mlflow; did you mean 'wandb'?"),
        (["log.services=[wandb]"], "log.services=[wandb] needs a library that is not installed: pip install wandb"),
        (["log.project=' '"], "log.project: write a name"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    settings: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warprun.config.checks.find_spec", lambda name: None)
    assert cli.run([*SMALL, *settings]) == 2
    assert capsys.readouterr().err == f"warprun: error: {message}\n"
    assert not list(tmp_path.iterdir())


def test_only_an_id_is_read_from_a_run_folder(tmp_path: Path) -> None:
    assert read_id(tmp_path, "wandb") is None
    for text, expected in (("ab-12_c", "ab-12_c"), ("../x", None), ("a" * 80, None), ("", None)):
        write_id(tmp_path, "wandb", text)
        assert read_id(tmp_path, "wandb") == expected
