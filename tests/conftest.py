"""What all tests share: where kernels are kept, and which tests need a GPU."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # Beside pytest's own cache: a second run of the tests compiles nothing, and nothing lands in the home folder.
    folder = config.rootpath / ".pytest_cache" / "d" / "kernels"
    os.environ.setdefault("WARPRUN_CACHE_DIR", str(folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if "gpu" in item.keywords]
    if not marked:
        return
    from warprun.engine.device import cuda_problem

    problem = cuda_problem()
    if problem:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {problem}"))
