"""Results of runs in programs and notebooks: records as rows and frames, curves, and the table of all runs."""

import json
import sys
from pathlib import Path

import pytest

import warprun
from tests.commands import ROOT
from tests.words import words
from warprun.runs import rundir

TINY = words("""
    env=cartpole n_envs=8 total_steps=512 eval.every=256steps eval.episodes=2 eval.final_episodes=2 log.live=false
    agent.minibatches=1 agent.epochs=1 device=cpu log.tensorboard=false tuned=none
""")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> warprun.Result:
    return warprun.train([*TINY, f"run_dir={tmp_path_factory.mktemp('runs')}/one"])


def test_rows_and_frames_are_the_records_and_the_summary_is_what_the_run_said(result: warprun.Result) -> None:
    rows = result.rows()
    assert rows[-1]["env_steps"] == result.env_steps == result.summary["env_steps"] == 512
    assert rows[-1]["eval/return"] == result.eval_return
    assert "eval/return" in result.summary
    assert not list(result.folder.glob("events*"))  # log.tensorboard=false
    pytest.importorskip("pandas")
    frame = result.frame()
    assert list(frame["env_steps"]) == [row["env_steps"] for row in rows]
    assert frame["eval/return"].iloc[-1] == result.eval_return


def test_a_plot_has_the_curves_of_training_and_of_evaluations(result: warprun.Result) -> None:
    pytest.importorskip("matplotlib").use("agg")
    axes = result.plot()
    assert {line.get_label() for line in axes.lines} == {"train/return", "eval/return"}
    assert result.plot(axes) is axes and len(axes.lines) == 4


def test_what_is_not_installed_is_named_in_one_line(result: warprun.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("pandas", "matplotlib"):
        monkeypatch.setitem(sys.modules, library, None)
    for asked in (result.frame, warprun.results(result.folder).frame, result.plot):
        with pytest.raises(warprun.UserError, match=r"^(pandas|matplotlib) is not installed; run: pip install "):
            asked()


def test_the_table_has_a_row_for_each_run(result: warprun.Result, tmp_path: Path) -> None:
    (broken := tmp_path / "deep" / "broken").mkdir(parents=True)
    (broken / "config.yaml").write_text("[")
    (tmp_path / "one").symlink_to(result.folder)
    (row,) = warprun.results(result.folder)
    assert (row["state"], row["eval"], row["agent.name"]) == (result.status, result.eval_return, "ppo")
    table = warprun.results(tmp_path)
    assert [row["env.name"] for row in table] == [None]
    assert str(table).splitlines()[1].startswith(str(broken))
    assert table._repr_html_().count("<tr>") == 2
    with pytest.raises(warprun.UserError, match="is no folder"):
        warprun.results(tmp_path / "nowhere")


def test_a_run_that_goes_on_shows_what_it_has_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status.json is that of its last checkpoint, which it may not have yet."""
    monkeypatch.setattr(rundir, "is_running", lambda folder: True)
    for name, group in (("one", None), ("two", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("seed: 3\n")
        part = f"{group}/" if group else ""
        rows = [{"env_steps": 64, "wall_s": 1.0, f"train/{part}return": 2.0, f"eval/{part}return": 5.0, f"eval/{part}return_stderr": 0.5}]
        rows += [{"env_steps": 128, "wall_s": 2.0, "train/a/return": 7.0, f"train/{part}return": 3.0}]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        status = {"state": "running", "started": rundir.now(), "env_steps": 0, "wall_s": 0.1, "train": None, "eval": None}
        rundir.write_status(tmp_path / name, status | ({"group": group} if group else {}))
    for row in warprun.results(tmp_path):
        found = {name: row[name] for name in ("state", "env_steps", "wall_s", "train", "eval", "eval_stderr", "seed")}
        assert isinstance(row["env_steps"], int)
        assert found == {"state": "running", "env_steps": 128, "wall_s": 2.0, "train": 3.0, "eval": 5.0, "eval_stderr": 0.5, "seed": 3}


@pytest.mark.long
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for needed in ("ipykernel", "pandas", "matplotlib"):
        pytest.importorskip(needed)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")]
    done = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in done.cells for output in cell.get("outputs", ())]
    assert [output for output in outputs if "image/png" in output.get("data", {})]
    results = [output for output in outputs if output.output_type == "execute_result"]
    assert len([output for output in results if "text/html" in output.data]) == 2
    assert "done=" in "".join(output.text for output in outputs if output.output_type == "stream")
