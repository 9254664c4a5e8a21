"""An empty working folder, and runs and jobs of sweeps that train nothing."""

import sys
import types
from pathlib import Path

import pytest

from tests.sweeps import fake_jobs
from warprun.cli import sweeps


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, here: Path) -> Path:
    """Let jobs train nothing, and return the working folder, which is empty."""
    monkeypatch.setattr(sweeps, "train_job", fake_jobs.train)
    return here


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, here: Path) -> list:
    """Run in an empty folder, where training only notes the config that it was given."""
    configs: list = []
    result = types.SimpleNamespace(eval_return=1.0, folder=here)
    monkeypatch.setitem(
        sys.modules, "warprun.runs.train", types.SimpleNamespace(train=lambda config, crew=None: configs.append(config) or result)
    )
    return configs
