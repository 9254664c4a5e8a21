"""Random programs of the contract, compiled and in plain Python: the same numbers, by `==`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import warprun
from tests.fuzz import playing
from tests.fuzz.planted import PLANTED

ROOT = Path(__file__).parents[2]
CUT = (73, 79, 32, 355, 281, 143, 102, 146, 336, 46, 224, 262, 78, 198)
"""Programs with loops over lanes that are cut, those that compile quickly first."""
SHORT = (14, 54, 60, 80, 104, 115, 165, 184, 208, 246, 257, 267, 280, 292, 393)
"""Other programs that compile quickly."""
IN_ONE_TEST = 100
COMPILED = ("kernels/lane_", "kernels/flow.py")
"""Files that have no part in kernels that Python interprets."""


@pytest.mark.by_default(0)
@pytest.mark.parametrize("seed", CUT[1:] + SHORT)
def test_a_short_program(seed, tmp_path):
    assert not list(playing.differences(seed, tmp_path))


MANY = [(True, range(first, first + IN_ONE_TEST)) for first in range(1000, 3000, IN_ONE_TEST)]
MANY += [(False, range(first, first + IN_ONE_TEST)) for first in range(1000, 1500, IN_ONE_TEST)]


@pytest.mark.parametrize(
    ("interpreted", "seeds"),
    [
        (True, range(400, 402)),
        pytest.param(True, range(402, 412), marks=pytest.mark.long),
        *(pytest.param(*given, marks=pytest.mark.slow) for given in MANY),
    ],
    ids=str,
)
def test_programs_in_a_process_of_their_own(interpreted, seeds, tmp_path):
    """Compiled code stays in memory; Python interprets the kernels in a tenth of the time of compiling them."""
    done = played(seeds, tmp_path, interpreted=interpreted)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_loops_of_programs_are_cut(tmp_path):
    """Else the others would tell nothing of the cutting. In a process and with a cache of its own, so that they are compiled."""
    done = played(CUT[:1], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["cut"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake, tmp_path):
    file, old, new = PLANTED[mistake]
    package = tmp_path / "warprun"
    shutil.copytree(Path(warprun.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    source = (package / file).read_text()
    assert old in source
    (package / file).write_text(source.replace(old, new))
    compiled = file.startswith(COMPILED)
    done = played(CUT + SHORT if compiled else range(200), tmp_path, str(tmp_path), interpreted=not compiled)
    assert done.returncode == 1 and done.stdout.startswith("program "), done.stdout + done.stderr


def played(seeds: Iterable[int], folder: Path, *paths: str, interpreted: bool = False) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, str(ROOT)]), "WARPRUN_CACHE_DIR": str(folder)}
    variables |= {"NUMBA_DISABLE_JIT": "1"} if interpreted else {}
    command = [sys.executable, "-m", "tests.fuzz.playing", str(folder), *map(str, seeds)]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
