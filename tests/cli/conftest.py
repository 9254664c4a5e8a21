"""Jobs of sweeps that train nothing."""

from pathlib import Path

import pytest

from tests.sweeps import fake_jobs
from warprun.cli import sweeps


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let jobs train nothing, and return an empty folder, the working folder."""
    monkeypatch.setattr(sweeps, "train_job", fake_jobs.train)
    monkeypatch.chdir(tmp_path)
    return tmp_path
