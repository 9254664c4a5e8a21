"""The simulators of docs/external.md, taken from the page and run."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import warprun
from tests.test_docs import ROOT, blocks, files
from tests.words import words

PAGE = ROOT / "docs" / "external.md"
SMALL = words("""
    agent=ppo agent.horizon=16 n_envs=4 total_steps=128 eval.episodes=2 eval.every=never log.live=false device=cpu
""")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page, which is the working folder."""
    for name, text in files(PAGE).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_simulator_in_c_takes_the_same_steps_as_that_in_python(folder: Path) -> None:
    (source,) = blocks(PAGE, "c")
    (folder / "fasttank.c").write_text(source)
    (compile_it,) = re.findall(r"^cc .*$", PAGE.read_text(), flags=re.MULTILINE)
    subprocess.run(compile_it.split(), check=True)
    runs = [warprun.train(["env=tank", f"env.module=./{name}.py", "concurrency.workers=2", *SMALL]) for name in ("tank", "fasttank")]
    assert [run.status for run in runs] == ["finished", "finished"]
    assert runs[0].eval_return == pytest.approx(runs[1].eval_return)
    assert (runs[1].folder / "environment" / "fasttank.py").exists()


@pytest.mark.slow
def test_ppo_learns_to_keep_the_level(folder: Path) -> None:
    given = ["env=tank", "agent=ppo", "n_envs=16", "total_steps=2e5", "eval.every=never", "device=cpu", "concurrency.workers=0"]
    result = warprun.train([*given, "log.live=false"])
    assert result.eval_return is not None and result.eval_return > -30.0
    assert result.metrics["eval/terminated"] < 0.05


@pytest.mark.by_default(0)
def test_the_mpi_program_of_the_page_trains_and_is_evaluated(folder: Path) -> None:
    pytest.importorskip("mpi4py")
    from tests.parallel.ranks import start

    given = ["env=tanks", *SMALL, "concurrency=async", "concurrency.ranks_per_env=2", "run_dir=run", "tuned=none"]
    done = start(5, *given, cwd=folder)
    assert done.returncode == 0, done.stderr
    done = start(2, "eval", "run", "episodes=2", "device=cpu", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "return" in done.stdout
