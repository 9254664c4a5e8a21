"""Whatever the arguments are: exit code 0 or 2, one line, in time, and nothing is left in the working folder."""

import io
import os
import re
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.cli.fuzzed import Fuzzer
from warprun.cli import main as cli
from warprun.config.schema import Config
from warprun.runs import train
from warprun.runs.rundir import Held
from warprun.sweeps import plan

ROOT = Path(__file__).parents[2]
LIMIT_S = 5.0
"""Of processor time, which other programs on the machine change little. Composing a config takes up to 2 s on a slow one."""


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Work in a folder with a file, a folder and links, where folders of runs and sweeps are made and taken back, and nothing is trained,
    measured or fetched."""
    result = types.SimpleNamespace(folder=tmp_path, eval_return=1.0, eval_stderr=None, train_return=None, env_steps=1, wall_s=1.0)

    def set_up(config: Config, crew: object = None) -> object:
        held = train._make_folder(config)
        train._take_back(held)
        held.release()
        return result

    @contextmanager
    def held(found: plan.Plan, first: Config) -> Iterator[Held]:
        lock = plan.claimed(found, Path(first.output_root))
        try:
            yield lock
        finally:
            plan.discard(lock, Path(first.output_root))
            lock.release()

    monkeypatch.setattr(train, "train", set_up)
    measured = types.SimpleNamespace(simulation_steps_per_s=None, threads=1)
    monkeypatch.setattr("warprun.runs.bench.bench", lambda *given: [measured])
    monkeypatch.setattr("warprun.runs.bench.report", lambda *given: None)
    monkeypatch.setattr("warprun.cli.sweeps.MAX_RUNS", 20)  # a large sweep is no mistake, and takes its time
    monkeypatch.setattr("warprun.cli.sweeps.held", held)
    monkeypatch.setattr("warprun.cli.sweeps.run_here", lambda *given: 0)
    work = tmp_path / "work"  # `..` is a folder of the test too
    (work / "folder").mkdir(parents=True)
    for file in (work / "file", work / "folder" / "file"):
        file.touch()
    (work / "link").symlink_to("folder")
    (work / "loop").symlink_to("loop")
    monkeypatch.chdir(work)
    return work


def fault(code: int, told: str, seconds: float, folder: Path, before: list[Path]) -> str:
    """Return what is wrong with the outcome of a command; empty if nothing is."""
    if code not in (0, 2):
        return f"exit code {code}: {told}"
    if code == 2 and not re.fullmatch(r"warprun: error: [^\n]+\n", told):
        return f"not one line: {told}"
    if len(told) > 2000:
        return f"a line of {len(told)} characters"
    if "Error: " in told and "fails to" not in told and "cannot" not in told:
        return f"a Python error: {told}"
    if sorted(folder.rglob("*")) != before:
        return f"something is left: {sorted(folder.rglob('*'))}"
    return f"took {seconds:.1f} s" if seconds > LIMIT_S else ""


def attack(seeds: range) -> list[str]:
    """Run lists of arguments in this process; return what went wrong."""
    cli.run(["agent=dqn", "--cfg", "job"])  # imports everything, so that it is not measured
    wrong = []
    for seed in seeds:
        arguments = Fuzzer(seed).arguments()
        out, told = io.StringIO(), io.StringIO()
        root = Path.cwd().parent
        before = sorted(root.rglob("*"))
        began = time.process_time()
        with redirect_stdout(out), redirect_stderr(told):
            code = cli.run(arguments)
        if arguments[:1] in (["bench"], ["scripts"], ["new"]) and code == 0:
            for path in sorted(set(root.rglob("*")) - set(before), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()  # what the command is for
        found = fault(code, told.getvalue(), time.process_time() - began, root, before)
        if found:
            wrong.append(f"{seed}: {arguments!r:.300}: {found:.500}")
    return wrong


SHORT = [range(n, n + 20) for n in range(0, 800, 20)]
LONG = [pytest.param(range(n, n + 1000), marks=pytest.mark.reliability) for n in range(0, 10_000, 1000)]


@pytest.mark.by_default(1)
@pytest.mark.parametrize("seeds", [*SHORT, *LONG])
def test_fuzzed_arguments(guarded, seeds):
    assert not attack(seeds)


@pytest.mark.reliability
@pytest.mark.parametrize("block", range(3))
def test_fuzzed_arguments_through_the_command(tmp_path, block):
    """The command itself: commands that would train, measure or fetch are made to stop at their check by an override that cannot work."""
    (tmp_path / "file").touch()
    wrong = []
    for seed in range(20_000 + 100 * block, 20_000 + 100 * (block + 1)):
        arguments = [argument.replace("\0", "").encode("utf-8", "surrogateescape") for argument in Fuzzer(seed).arguments()]
        if arguments[:1] in ([], [b"train"], [b"bench"], [b"-m"]) or b"=" in arguments[0]:
            arguments.append(b"sizes=0" if arguments[:1] == [b"bench"] else b"n_envs=0")
        if arguments[:1] in ([b"new"], [b"scripts"]):
            continue  # what these are for is to write files
        began = time.perf_counter()
        command = [sys.executable, "-m", "warprun", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, stdin=subprocess.DEVNULL)
        told = done.stderr.decode(errors="replace")
        # Imports, and other programs on the machine, count here too.
        seconds = (time.perf_counter() - began) / 5
        found = fault(done.returncode, told, seconds, tmp_path, [tmp_path / "file"])
        if found:
            wrong.append(f"{seed}: {arguments!r:.300}: {found:.500}")
    assert not wrong
