"""The golden numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.agents.helpers import Golden


@pytest.fixture(scope="session")
def golden() -> Golden:
    """Return a function from the name of a block of golden numbers to its tensors."""
    data = np.load(Path(__file__).parent.parent / "golden" / "algo_golden.npz")

    def block(name: str) -> dict[str, torch.Tensor]:
        keys = [key for key in data.files if key.startswith(f"{name}/")]
        return {key.partition("/")[2]: torch.from_numpy(np.asarray(data[key])) for key in keys}

    return block
