"""`warprun report`: its files, its lines, and what it refuses."""

import csv
import json
import os
import re
import shutil
import subprocess
from datetime import datetime
from html import escape, unescape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import image

from tests.report.made import made
from tests.report.test_figures import LONG, make
from warprun.cli import main as cli
from warprun.report.report import Asked, report

Captured = pytest.CaptureFixture[str]
FIGURES = ("learning", "scores", "throughput", "profiles", "improvement")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a report of 4 settings of 8 seeds; beside it is another report of the same runs, `again`."""
    folder = tmp_path_factory.mktemp("report")
    generator = np.random.default_rng(0)
    for agent in ("a2c", "ppo"):
        for n_envs in (100, 1000):
            for seed in range(8):
                ends = 300.0 + 100 * (agent == "ppo") + 90 * (n_envs == 1000) + generator.normal(0.0, 20.0)
                curve = np.minimum(500.0, np.linspace(20.0, ends, 30) + generator.normal(0.0, 5.0, 30))
                settings = {"agent.name": agent, "n_envs": n_envs, "seed": seed}
                made(folder / "sweep" / f"{agent}_{n_envs}_{seed}", curve.tolist(), settings=settings)
    (folder / "again").mkdir()
    (folder / "again" / "heatmap.png").touch()  # of an earlier report
    for name in ("figures/mine", "again"):
        assert cli.run(["report", str(folder / "sweep"), "threshold=400", f"out={folder / name}"]) == 0
    return folder / "figures" / "mine"


@pytest.fixture
def without_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a new folder, without matplotlib."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warprun.report.report.find_spec", lambda name: None)


def test_figures_show_something_and_the_page_loads_nothing(out: Path) -> None:
    for name in FIGURES:
        picture = image.imread(out / f"{name}.png")
        assert picture.shape[1] > 600 and picture[..., :3].std() > 0.02  # not an empty page
        ElementTree.parse(out / f"{name}.svg")
    text = (out / "report.html").read_text()
    sources = re.findall(r'(?:src|href|url)\s*[=(]\s*"?([^"\s>)]+)', text)
    assert len(sources) == len(FIGURES) and all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert "<script" not in text and "@import" not in text


def test_the_same_runs_give_the_same_files(out: Path) -> None:
    again = out.parents[1] / "again"
    assert sorted(path.name for path in again.iterdir()) == sorted(path.name for path in out.iterdir())
    for path in out.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


def test_the_tables_of_a_report(out: Path) -> None:
    settings = list(csv.DictReader((out / "settings.csv").open()))
    assert [(row["agent"], row["n_envs"], row["runs"]) for row in settings] == [
        (agent, n_envs, "8") for agent in ("a2c", "ppo") for n_envs in ("100", "1000")
    ]
    runs = list(csv.DictReader((out / "runs.csv").open()))
    assert len(runs) == 32
    finals = [float(row["final"]) for row in runs if row["agent"] == "ppo" and row["n_envs"] == "1000"]
    (line,) = [row for row in settings if row["agent"] == "ppo" and row["n_envs"] == "1000"]
    assert float(line["final_median"]) == pytest.approx(np.median(finals))
    assert float(line["final_iqm_low"]) < float(line["final_iqm"]) < float(line["final_iqm_high"])
    curves = list(csv.DictReader((out / "curves.csv").open()))
    assert {row["axis"] for row in curves} == {"env_steps", "wall_s"} and len(curves) == 2 * 4 * 200
    assert "| cartpole | ppo | 1,000 | 8 |" in (out / "report.md").read_text()


def test_single_runs_and_unfinished_ones(without_figures: None, capsys: Captured) -> None:
    made(Path("runs/a"), [1.0, 2.0])
    made(Path("runs/b"), [1.0], state="interrupted")
    assert cli.run(["report", "runs", "threshold=600"]) == 0
    told = capsys.readouterr().out
    assert "threshold=600: no run reaches it; the highest return of all records is 2\n" in told
    assert "left out: runs/b: interrupted; unfinished=true includes it" in told and "replaces" not in told
    assert "runs/b" in Path("report/report.html").read_text()
    os.utime("report/report.html", (0.0, 1e9))
    assert cli.run(["report", "runs", "unfinished=true", "returns=train", "log_x=true"]) == 0
    told = capsys.readouterr().out
    assert "1 run without an end: runs/b (interrupted)" in told
    assert f"replaces the report of {datetime.fromtimestamp(1e9):%Y-%m-%d %H:%M} in report; out=FOLDER keeps it\n" in told


def test_versions_of_a_file_or_of_a_table_are_named(without_figures: None, capsys: Captured) -> None:
    def written(run: str, version: str, options: str = "", table: str = "old", network: str = "old", place: str = "./a") -> None:
        folder = made(Path("runs", run), [1.0, 2.0])
        for name, about in {
            "environment": {
                "module": f"{place}/pump.py",
                "files": {"pump": {"file": "pump.py", "sha256": version}},
                "tables": {"heat": {"sha256": table}},
                "options": {"data": options},
                "time_limit": None,
            },
            "networks": {
                f"{place}/net.py": {"files": {"net": {"file": "net.py", "sha256": network}}},
                f"{place}/two/net.py": {"files": {"net": {"file": "net.py", "sha256": "always"}}},
            },
        }.items():
            (folder / name).mkdir()
            (folder / name / "manifest.json").write_text(json.dumps(about))

    written("a", "old")
    written("b", "old", options="another file", table="new")  # a table of other options may be another one
    written("c", "other", table="other", network="other", place="b")  # files of the same names in another folder
    assert cli.run(["report", "runs"]) == 0
    assert "versions" not in capsys.readouterr().out
    written("d", "new", table="new", network="new")
    assert cli.run(["report", "runs"]) == 0
    told = capsys.readouterr().out
    assert "runs of cartpole have 2 versions of a/pump.py: 2 as runs/a, 1 as runs/d\n" in told
    assert "runs of cartpole have 2 versions of table heat: 1 as runs/a, 1 as runs/d\n" in told
    assert "versions of a/net.py: 2 as runs/a, 1 as runs/d\n" in told and "pump.py" in Path("report/report.md").read_text()


@pytest.mark.parametrize("folder", ["environment", "networks"])
def test_a_run_with_a_damaged_manifest_counts(without_figures: None, folder: str, capsys: Captured) -> None:
    for run, content in {"list": "[]", "part": "{", "large": " " * (2 << 20), "pipe": None}.items():
        manifest = made(Path("runs", run), [1.0]) / folder / "manifest.json"
        manifest.parent.mkdir()
        os.mkfifo(manifest) if content is None else manifest.write_text(content)
    assert cli.run(["report", "runs"]) == 0
    assert "left out" not in capsys.readouterr().out and len(Path("report/runs.csv").read_text().splitlines()) == 1 + 4


def test_runs_without_a_return_are_refused(without_figures: None, capsys: Captured) -> None:
    rows = made(Path("runs/a"), [1.0]) / "metrics.jsonl"
    rows.write_text(re.sub(r'(return": )[0-9.]+', r"\1null", rows.read_text()))
    for returns, named in {"auto": "evaluation or training", "eval": "eval", "train": "train"}.items():
        assert cli.run(["report", "runs", f"returns={returns}"]) == 2
        assert f"no run in runs has a record of the {named} return\n" in capsys.readouterr().err


def test_names_of_others_are_escaped_and_the_group_of_returns_is_named(without_figures: None, capsys: Captured) -> None:
    for n, module in enumerate(("<script>alert(1)</script>", "a|b$x_{$")):
        run = made(Path("runs", str(n)), [1.0, 2.0], settings={"agent.module": module})
        text = (run / "metrics.jsonl").read_text().replace("train/return", "train/walkers/return")
        (run / "metrics.jsonl").write_text(text.replace("eval/return", "eval/walkers/return"))
    assert cli.run(["report", "runs"]) == 0
    assert "<script>" not in Path("report/report.html").read_text()
    assert "a\\|b$x_{$" in Path("report/report.md").read_text()
    assert "returns are those of group walkers of cartpole (eval.group)\n" in capsys.readouterr().out


def test_columns_are_chosen_and_a_page_shows_the_table(without_figures: None) -> None:
    for seed, value in enumerate((3.0, 4.0, 8.0)):
        made(Path(f"runs/{seed}"), [1.0, value], settings={"seed": seed})
    Path("page.md").write_text("before\n<!-- other -->\n<!-- end -->\n<!-- mine -->\nold\n<!-- end -->\nafter\n")
    assert cli.run(["report", "runs", "columns=perf/eval_ms,median,runs,env_steps", "into=page.md:mine"]) == 0
    before, shown = Path("page.md").read_text().split("<!-- mine -->\n")
    assert before == "before\n<!-- other -->\n<!-- end -->\n" and shown.endswith("<!-- end -->\nafter\n") and "old" not in shown
    titles, _, row = shown.splitlines()[:3]
    assert titles == "| env | agent | perf/eval_ms, median | final eval return, median | runs | env_steps, median |"
    assert row == "| cartpole | ppo | 1 [1, 1] | 4.0 [3.0, 8.0] | 3 | 2,000 [2,000, 2,000] |"
    assert shown.partition("<!-- end")[0] in Path("report/report.md").read_text()
    assert [line["env_steps"] for line in csv.DictReader(Path("report/runs.csv").read_text().splitlines())] == ["2000.0"] * 3
    (line,) = csv.DictReader(Path("report/settings.csv").read_text().splitlines())
    assert (line["perf/eval_ms"], line["perf/eval_ms_low"]) == ("1.0", "1.0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "report needs run folders or folders of runs, such as `warprun report outputs`"),
        (["nowhere"], "nowhere does not exist"),
        (["empty"], "no run to report in empty; a run is a folder with a config.yaml"),
        (["half"], "no run to report in half: half/a: its set-up did not end: it has no config.yaml"),
        (["runs", "by=agnt"], "by=agnt: no run has the setting 'agnt'; did you mean 'agent'?"),
        (["runs", "by="], "by= needs names of settings, such as by=agent,n_envs"),
        (["runs", "threshold=nan"], "threshold=nan must be a finite number"),
        (["runs", "returns=evl"], "returns=evl is not one of auto, eval, train; did you mean 'eval'?"),
        (["runs", "columns=runs,medin"], "columns=medin: no run records this metric; did you mean 'median'?"),
        (["runs", "into=page.md"], "into=page.md: it must be a page and a mark in it, such as into=results.md:returns"),
        (["runs", "into=page.md:a"], "into=page.md: No such file or directory"),
        (
            ["runs", "into=runs/a/config.yaml:a"],
            "into=runs/a/config.yaml:a: the page has 0 places from <!-- a --> to <!-- end -->, and needs one",
        ),
        (["runs", "out=runs/a/config.yaml"], "out=runs/a/config.yaml: it is a file, and a folder is needed"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("half/a").mkdir(parents=True)
    Path("half/a/lock").touch()
    made(Path("runs/a"), [1.0])
    assert cli.run(["report", *arguments]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"warprun: error: {message}") and told.err.count("\n") == 1
    assert not Path("report").exists()


# The page of a report in a browser; skipped where none is installed ---------------------------------------------------

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
WIDTHS = (1300, 420)
MEASURE = """
<pre id="found"></pre><script>
const seen = {}
function look(frame) {
  const page = frame.contentDocument, root = page.documentElement, inside = frame.contentWindow
  seen[frame.id] = {
    page: root.scrollWidth, window: root.clientWidth,
    loaded: inside.performance.getEntriesByType("resource").map(each => each.name).filter(name => !name.startsWith("data:")),
    images: [...page.images].map(image => ({alt: image.alt, width: image.naturalWidth, shown: image.clientWidth})),
    boxes: [...page.querySelectorAll(".wide")].map(box => ({width: box.clientWidth, content: box.scrollWidth})),
    table: page.querySelector("table").offsetWidth,
  }
  document.getElementById("found").textContent = JSON.stringify(seen)
}
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_page_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BROWSER is not None
    monkeypatch.chdir(tmp_path)
    make(LONG, noise=5.0)
    made(Path("runs", "a-folder-with-a-long-name" * 5), [1.0], state="failed")
    report([Path("runs")], Asked())
    text = Path("report/report.html").read_text()
    frames = (f'<iframe id="{width}" width={width} height=900 onload="look(this)" srcdoc="{escape(text)}"></iframe>' for width in WIDTHS)
    Path("measure.html").write_text(f"<!doctype html>{MEASURE}{''.join(frames)}")
    options = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/browser", "--timeout=30000"]
    if os.geteuid() == 0:
        options.append("--no-sandbox")
    done = subprocess.run([BROWSER, *options, "--dump-dom", f"file://{tmp_path}/measure.html"], capture_output=True, text=True, timeout=120)
    told = re.search(r'<pre id="found">(.*?)</pre>', done.stdout)
    assert told is not None, done.stderr[-2000:]
    found = json.loads(unescape(told[1]))
    assert found.keys() == set(map(str, WIDTHS))
    for width, each in found.items():
        assert each["loaded"] == [] and each["page"] <= each["window"], width
        assert len(each["images"]) == 4 and all(len(image["alt"]) > 15 and image["width"] > 0 for image in each["images"]), width
        assert len({image["alt"] for image in each["images"]}) == 4
        assert all(box["width"] <= each["window"] for box in each["boxes"])
    small = found["420"]
    assert small["table"] > small["boxes"][0]["width"] and small["boxes"][0]["content"] >= small["table"]  # which scrolls in its box
    assert max(image["shown"] for image in small["images"]) > 500  # and so does what is too wide to be read when it is shrunk
