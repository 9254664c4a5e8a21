"""What all tests share: where kernels are kept, and which tests need a GPU or the extra `ptx`."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

TESTS = Path(__file__).parent
LONGEST = [TESTS / file for file in ("test_commands.py", "ptx/test_hardware.py", "ptx/test_hosted.py", "test_site.py")]
"""Files with few tests that take minutes. They come first: begun last, one would keep a process busy while the others wait."""
CI_TAKES_EVERY = 4
"""Of the cases of a test that do not run by default."""


def pytest_configure(config: pytest.Config) -> None:
    # Beside pytest's own cache: a second run of the tests compiles nothing, and nothing lands in the home folder.
    folder = config.rootpath / ".pytest_cache" / "d" / "kernels"
    os.environ.setdefault("WARPRUN_CACHE_DIR", str(folder))
    # With the key of the seals of runs.
    os.environ["XDG_CONFIG_HOME"] = str(folder.with_name("home"))
    # Else pytest-xdist would begin with the files of most tests.
    config.option.loadscopereorder = False


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # At once: if something ends the tests before their summary, what has failed is known.
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid} failed in its {report.when}\n{report.longreprtext}", flush=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Do not look for reference cycles among the modules and tests of a process: they stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path) if item.path in LONGEST else len(LONGEST))
    _mark_cases(items)
    _skip(items, "gpu", _without_gpu)
    _skip(items, "ptx", _without_ptx)


def _skip(items: list[pytest.Item], name: str, problem: Callable[..., str]) -> None:
    """Skip the tests with a mark for which `problem`, called with what the mark was given, returns a reason."""
    for item in items:
        mark = item.get_closest_marker(name)
        reason = problem(*mark.args) if mark else ""
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _without_gpu() -> str:
    from warprun.simulation.device import cuda_problem

    problem = cuda_problem()
    return f"needs a GPU: {problem}" if problem else ""


@cache
def _without_ptx(*packages: str) -> str:
    """Return the one reason why nothing is compiled to PTX here, and assembled if `packages` are needed for it."""
    from warprun.checking.machine_code import nvvm_problem

    missing = [f"{package} is not installed" for package in packages if not list(metadata.distributions(name=package))]
    problem = nvvm_problem() or ", ".join(missing)
    return f'needs the extra ptx, pip install -c constraints.txt -e ".[test,ptx]": {problem}' if problem else ""


def _mark_cases(items: list[pytest.Item]) -> None:
    """Mark the cases of tests that do not run by default: those after the first n of a test with `by_default(n)`, all of one marked `long`.

    Of these every fourth is `long`, beginning with the first, and the others are `slow`.
    """
    seen: Counter[tuple[Path, str]] = Counter()
    for item in items:
        by_default, long = item.get_closest_marker("by_default"), item.get_closest_marker("long")
        by_hand = item.get_closest_marker("slow") or item.get_closest_marker("reliability")
        if isinstance(item, pytest.Function) and (by_default or long) and not by_hand:
            case = seen[item.path, item.originalname] - (by_default.args[0] if by_default else 0)
            seen[item.path, item.originalname] += 1
            if case >= 0:
                item.add_marker(pytest.mark.slow if case % CI_TAKES_EVERY else pytest.mark.long)


@pytest.fixture(autouse=True)
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the trial of an environment, before its kernels are compiled, end early."""
    from warprun.simulation import trial  # not at the top: the process that hands tests to others needs neither torch nor Numba

    monkeypatch.setattr(trial, "STEPS", 200)


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function from the words of a command that is refused to its one line of error."""
    from warprun.cli.main import run

    def line_of(*words: str) -> str:
        assert run(list(words)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("warprun: error: ")
        return line

    return line_of


@pytest.fixture(scope="session")
def golden() -> Callable[[str], dict[str, torch.Tensor]]:
    """Return a function from the name of a block of golden numbers to its tensors."""
    import numpy as np
    import torch

    data = np.load(Path(__file__).parent / "golden" / "algo_golden.npz")

    def block(name: str) -> dict[str, torch.Tensor]:
        keys = [key for key in data.files if key.startswith(f"{name}/")]
        return {key.partition("/")[2]: torch.from_numpy(np.asarray(data[key])) for key in keys}

    return block
