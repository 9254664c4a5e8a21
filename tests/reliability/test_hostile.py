"""Folders of runs and sweeps that somebody else made to do harm: commands end at once, in one line, and write nowhere else."""

import json
import tracemalloc
import warnings
from pathlib import Path

import pytest

from tests.finished import in_time
from tests.report.made import made
from tests.runs.hostile import ODD_FILES
from warprun.cli import main as cli
from warprun.run_folder import JOBS
from warprun.runs.records.jsonl import read_rows
from warprun.sweeps import plan

Captured = pytest.CaptureFixture[str]
LONG = "1" * 400
"""No float has as many digits."""
ROW = '{"env_steps": %s, "wall_s": 1, "eval/return": %s, "perf/eval_ms": 1, "train/progress": %s}\n'
ROWS = {
    "digits": ROW % (LONG, LONG, LONG),
    "more digits": ROW % (LONG * 20, 1, 1),
    "not finite": ROW % ("NaN", "Infinity", "-Infinity"),
    "range": ROW % (1e308, -1e308, 1e-308) + ROW % (1e308, 1e308, 1e308),
    "types": ROW % ('"1"', "[1]", "{}") + "[]\nnull\n1\n" + ROW % ("true", "true", "true"),
    "depth": "[" * 100_000 + "\n" + '{"a":' * 100_000 + "\n",
    "disorder": ROW % (9, 1, 1) + ROW % (1, 2, 1),
    "escapes": ROW % (1, 1, 1) + '{"env_steps": 2, "wall_s": 2, "eval/\\ud800\\u001b[2J/return": 1, "perf/eval_ms": 1}\n',
}
STATUS = {
    "state": '{"state": "exploded"}',
    "type": '{"state": ["running"]}',
    "list": "[1]",
    "depth": "[" * 100_000,
    "not finite": '{"state": "failed", "env_steps": NaN, "wall_s": Infinity, "eval": NaN, "attempts": NaN}',
    "digits": f'{{"state": "failed", "env_steps": {LONG * 20}}}',
    "range": '{"state": "finished", "env_steps": 1e308, "wall_s": 1e308, "eval": -1e308, "eval_stderr": 1e-308, "attempts": -1}',
    "types": '{"state": "finished", "env_steps": "1", "wall_s": [], "eval": {}, "eval_stderr": true, "error": {"a": 1}, "pid": "x"}',
    "escapes": '{"state": "failed", "error": "\\ud800\\u001b[2J\\nx", "pid": 1, "host": "\\u0000"}',
}
PLANS = {
    "job": '{"format": 1, "search": null, "working_folder": "/", "jobs": [1]}',
    "search": '{"format": 1, "search": [1], "working_folder": "/", "jobs": [{"overrides": ["seed=1"], "run": "a"}]}',
    "twice": '{"format": 1, "search": null, "working_folder": "/", "jobs": [{"overrides": [], "run": "a"}, {"overrides": [], "run": "a"}]}',
    "depth": "[" * 100_000,
    "digits": f'{{"format": {LONG * 20}}}',
}


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sweep of somebody else with one job that runs, in another folder than the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warprun.report.report.find_spec", lambda name: None)
    folder = tmp_path / "theirs"
    made(folder / "0000", [1.0, 2.0])
    (folder / JOBS / "0000").mkdir(parents=True)
    (folder / JOBS / "0000" / "status.json").write_text('{"state": "failed"}')
    content = {"format": 1, "search": None, "working_folder": str(folder), "jobs": [{"overrides": ["seed=1"], "run": "0000"}]}
    (folder / plan.PLAN).write_text(json.dumps(content))
    return folder


def told(capsys: Captured, *arguments: str, codes: tuple[int, ...] = (0, 1, 2)) -> str:
    """Return what a command says on standard error: nothing, or one line that is no error of Python."""
    capsys.readouterr()
    with in_time(60), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # which numpy would print
        code = cli.run(list(arguments))
    out, err = capsys.readouterr()
    assert code in codes and "Traceback" not in err and "Error:" not in err, err
    assert len(err.splitlines()) <= (code == 2) and "\x1b" not in out + err, err
    return err


@pytest.mark.parametrize("kind", ODD_FILES)
@pytest.mark.parametrize("file", ["metrics.jsonl", "status.json", "config.yaml", "lock", f"../{JOBS}/0000/status.json", "../plan.json"])
def test_what_is_no_file_is_not_waited_for(sweep: Path, file: str, kind: str, capsys: Captured) -> None:
    ODD_FILES[kind](sweep / "0000" / file)
    told(capsys, "status", "theirs")
    told(capsys, "report", "theirs")


@pytest.mark.parametrize("case", ROWS)
def test_records_of_others(sweep: Path, case: str, capsys: Captured) -> None:
    (sweep / "0000" / "metrics.jsonl").write_text(ROWS[case])
    told(capsys, "status", "theirs", codes=(1,))
    told(capsys, "report", "theirs")
    made(sweep / "good", [1.0, 2.0])
    told(capsys, "report", "theirs", codes=(0,))


@pytest.mark.parametrize("case", STATUS)
def test_states_of_others(sweep: Path, case: str, capsys: Captured) -> None:
    for place in ("0000", f"{JOBS}/0000"):
        (sweep / place / "status.json").write_text(STATUS[case])
        told(capsys, "status", "theirs")
        told(capsys, "report", "theirs", "unfinished=true", codes=(0,))


@pytest.mark.parametrize("case", PLANS)
def test_plans_of_others(sweep: Path, case: str, capsys: Captured) -> None:
    (sweep / plan.PLAN).write_text(PLANS[case])
    assert "plan.json" in told(capsys, "status", "theirs", codes=(2,))


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What jobs would train: overrides."""
    found: list[list[str]] = []
    monkeypatch.setattr("warprun.cli.job.train_one", lambda overrides, compose: found.append(overrides) or 0)
    return found


@pytest.mark.parametrize("seal", [None, "", "0" * 64, "\ud800", "of somebody else"])
def test_jobs_of_others_need_trust(sweep: Path, seal: str | None, trained: list[list[str]], capsys: Captured) -> None:
    path = sweep / plan.PLAN
    if seal == "of somebody else":
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CONFIG_HOME", str(sweep.parent / "home"))
            plan.read(sweep).write()
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | ({} if seal is None else {"seal": seal})))
    before = content(sweep)
    for command in (["job", "theirs", "0"], ["-m", "sweep_dir=theirs"], ["-m", "seed=1", "sweep_dir=theirs"]):
        assert "not a sweep of yours (no valid seal)" in told(capsys, *command, codes=(2,))
    assert content(sweep) == before and trained == []
    assert told(capsys, "job", "theirs", "0", "trust=true", codes=(0,)) == ""
    assert trained[0][0] == "seed=1" and "trust=true" in trained[0]


def test_a_study_of_others_needs_trust(sweep: Path, capsys: Captured) -> None:
    study = json.loads((sweep / plan.PLAN).read_text()) | {"search": {"seed": "1,2"}}
    (sweep / plan.PLAN).write_text(json.dumps(study))
    before = content(sweep)
    assert "not a sweep of yours" in told(capsys, "tune", "seed=1,2", "sweep_dir=theirs", codes=(2,))
    assert content(sweep) == before


def test_a_plan_of_yours_is_refused_once_it_was_changed(sweep: Path, trained: list[list[str]], capsys: Captured) -> None:
    plan.read(sweep).write()
    own = json.loads((sweep / plan.PLAN).read_text())
    changes = ({"working_folder": "/tmp"}, {"jobs": [{**own["jobs"][0], "overrides": ["env.module=evil.py"]}]}, {"search": {"seed": "1"}})
    for change in changes:
        (sweep / plan.PLAN).write_text(json.dumps(own | change))
        assert "no valid seal" in told(capsys, "job", "theirs", "0", codes=(2,))
    (sweep / plan.PLAN).write_text(json.dumps(own))
    told(capsys, "job", "theirs", "0", codes=(0,))
    assert "trust=false" in trained[0]


@pytest.mark.parametrize("place", ["0000", JOBS, f"{JOBS}/0000", f"{JOBS}/0000/log.txt", f"{JOBS}/0000/traceback.txt"])
def test_a_job_follows_no_link(sweep: Path, place: str, trained: list[list[str]], capsys: Captured) -> None:
    plan.read(sweep).write()
    (sweep / place).rename(sweep.parent / "precious") if (sweep / place).exists() else (sweep.parent / "precious").write_text("mine")
    (sweep / place).symlink_to(sweep.parent / "precious")
    before = content(sweep.parent)
    assert "link" in told(capsys, "job", "theirs", "0", codes=(2,))
    assert content(sweep.parent) == before and trained == []


def test_without_a_key_a_sweep_says_so(sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    (sweep.parent / "home").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(sweep.parent / "home"))
    mine = plan.planned(sweep.parent / "mine", [["seed=1"]])
    plan.claimed(mine, sweep.parent).release()
    assert "has no seal" in capsys.readouterr().out and mine.seal == ""
    assert "no valid seal" in told(capsys, "job", "mine", "0", codes=(2,))


def test_many_tiny_rows_take_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warprun.runs.records.jsonl.MAX_LINES", 5_000)
    path = tmp_path / "metrics.jsonl"
    tags = ", ".join(f'"t{n}": 1' for n in range(100))
    path.write_text(f'{{"env_steps": 1, "wall_s": 1, {tags}}}\n' * 2_000 + "{}\n" * 1_000_000)
    tracemalloc.start()
    with pytest.raises(Exception, match="lines"):
        read_rows(path, "env_steps".__eq__)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_a_report_follows_no_link(tmp_path: Path, capsys: Captured) -> None:
    for seed in (0, 1):
        made(tmp_path / "runs" / str(seed), [1.0, 500.0], settings={"seed": seed, "n_envs": 8 + seed})
    out = tmp_path / "report"
    out.mkdir()
    (tmp_path / "precious").write_text("mine")
    names = [f"{name}.{end}" for name in ("learning", "scores", "throughput", "profiles", "improvement") for end in ("svg", "png")]
    names += ["report.html", "report.md", "runs.csv", "settings.csv", "curves.csv"]
    for name in names:
        (out / name).symlink_to(tmp_path / "precious")
    told(capsys, "report", str(tmp_path / "runs"), f"out={out}", codes=(0,))
    assert (tmp_path / "precious").read_text() == "mine" and not any(path.is_symlink() for path in out.iterdir())
