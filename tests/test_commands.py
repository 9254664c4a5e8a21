"""Commands that the project shows work as they are written, in the shells that people use."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import PAGES, ROOT, SHELLS, scripts, shown, words
from tests.test_docs import make_files
from tests.written import add_programs
from warprun.cli.main import run
from warprun.cli.sweeps import SHORT
from warprun.config.compose import change, compose
from warprun.config.overrides import runs
from warprun.config.schema import to_dict
from warprun.errors import UserError
from warprun.sweeps.launch import compose_launch, is_of_sweep
from warprun.sweeps.study import read_space

SHOWN = shown()
OWN = re.compile(r"(sizes|threads|out|policy|record|episodes|every|fps|seed|greedy)=")
"""Settings of bench, check and play that are not those of a run."""
STAND_INS = {"sbatch": 'echo "17;cluster"', "srun": ":", "squeue": ":"}
"""Programs of a cluster -> what they do here."""
NO_DATA = (
    "cannot download",
    "cannot fetch",
    "fetches it, or set WARPRUN_DATA_DIR",
    '"warprun[jax]"',
    '"warprun[gymnax]"',
    '"warprun[brax]"',
    '"warprun[jumanji]"',
    "No module named 'minatar'",
    "No module named 'warp'",
    "gymnasium[box2d]",
    "device=cuda: ",
)
"""Ends of commands without what is not there: data, libraries that tests do not install, a GPU."""


def _new_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield every page with its commands, without those at its end that an earlier page has: what they make nobody needs."""
    seen: set[str] = set()
    for source, commands in SHOWN.items():
        last = max((n for n, command in enumerate(commands, 1) if command not in seen), default=0)
        if last:
            yield source, commands[:last]
        seen.update(commands)


NEW = dict(_new_commands())
NOT_ALL_RUN = [page for n, page in enumerate(SHOWN) if n < 6 or any(program in " ".join(SHOWN[page]) for program in STAND_INS)]
"""Pages with commands that `test_commands_run` does not run, and the first ones."""


@pytest.mark.parametrize("shell", SHELLS)
def test_blocks_of_shell_can_be_read(shell: str) -> None:
    for page in PAGES:
        for script in scripts(page):
            done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
            assert done.returncode == 0, f"{page.name}: {done.stderr}"


@pytest.mark.by_default(2)
@pytest.mark.parametrize("source", NOT_ALL_RUN)
def test_settings_of_commands_are_accepted(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _make(source, tmp_path, monkeypatch)
    for command in SHOWN[source]:
        for given in words(command, tmp_path):
            try:
                _accept(["device=auto" if word == "device=cuda" else word for word in given])
            except UserError as error:
                assert any(reason in str(error) for reason in NO_DATA), f"{command}: {error}"


def _make(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a working folder with the files that a page tells to make, with `myenv` of the README, and with a run for a pattern."""
    make_files(ROOT / "README.md", folder)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("outputs"))
    if source.endswith(".md"):
        make_files(ROOT / source, folder)
    (folder / "outputs" / "speed_1").mkdir(parents=True)
    monkeypatch.chdir(folder)


def _accept(given: list[str]) -> None:
    """Compose what a call of warprun is about; of a sweep the first job will do, because every value is checked. Raises UserError."""
    verb = given[0] if "=" not in given[0] and not given[0].startswith("-") else "train"
    settings = [word for word in given if "=" in word and not word.startswith("-")]
    if verb == "new":
        assert run(given) == 0
        name = next(word for word in given[1:] if not word.startswith("-"))
        shutil.copytree(name, ".", dirs_exist_ok=True)  # what follows is composed here, as if in the folder of the project
    elif verb in ("bench", "check", "play") and any(word.startswith("env=") for word in settings):
        compose([word for word in settings if not OWN.match(word)])
    elif verb == "tune":
        asked = [f"tune.{word}" if word.partition("=")[0] in SHORT else word for word in settings]
        compose_launch([word for word in asked if is_of_sweep(word)])
        for corner in read_space([word for word in asked if not is_of_sweep(word)]).corners():
            compose(corner)
    elif settings and settings[0].startswith("resume="):
        mode = ["concurrency=ddp"] if any(setting.startswith("concurrency.processes=") for setting in settings) else []
        change(to_dict(compose(["env=cartpole", *mode])), settings[1:])
    elif verb == "train":
        compose_launch([word for word in settings if is_of_sweep(word)])
        # The file of this experiment is made by the study before it.
        of_runs = [word for word in settings if not is_of_sweep(word) and word not in ("resume=auto", "experiment=tuned_here")]
        if any(word.startswith("concurrency.ranks_per_env=") for word in of_runs):
            of_runs.append("concurrency.processes=5")  # as if this process only started them
        compose(runs(of_runs)[0])


@pytest.mark.long
@pytest.mark.parametrize("source", NEW)
def test_commands_run(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a shell, as it is written and in the order of the page; `warprun` has a tiny budget, see `tests.commands.tiny`."""
    _make(source, tmp_path, monkeypatch)
    programs = tmp_path / "programs"
    add_programs(programs, {**STAND_INS, "warprun": f'exec "{sys.executable}" -m tests.commands "$@"'})
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"}
    for command in NEW[source]:
        for named in _runs_named(command):
            _run_first(tmp_path / _place(command) / named, environment)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, env=environment)
        no_data = done.returncode == 2 and any(reason in done.stderr for reason in NO_DATA)
        assert done.returncode == 0 or no_data, f"{command}\n{done.stdout}\n{done.stderr}"


def _place(command: str) -> str:
    """Return the folder that a command is called from."""
    return command.split()[1] if command.startswith("cd ") else "."


def _runs_named(command: str) -> list[str]:
    """Return the run folders that a command needs: RUN in place of the reader's own, or any."""
    named = re.findall(r"(?:resume=|eval |export |play )((?:outputs/)?RUN)\b", command)
    return named or (["outputs/earlier"] if re.search(r"\blatest\b|report outputs\b", command) else [])


def _run_first(folder: Path, environment: dict[str, str]) -> None:
    """Make a run folder: RUN as a copy of the first run of the page, for each command anew; any other once, if there is no run."""
    if folder.name == "RUN":
        shutil.rmtree(folder, ignore_errors=True)
    places = (folder.parent, folder.parent / "outputs")
    begun = sorted((config for place in places for config in place.glob("*/config.yaml")), key=os.path.getmtime)
    if begun and folder.name == "RUN":
        shutil.copytree(begun[0].parent, folder)
    elif not begun:
        train = ["warprun", "env=cartpole", "n_envs=64", f"run_dir={folder}"]
        subprocess.run(train, check=True, capture_output=True, env=environment, cwd=folder.parents[1])
