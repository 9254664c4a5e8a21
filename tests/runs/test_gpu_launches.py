"""What iterations ask of a GPU, counted without one: the table of docs/gpu.md, and that no number waits on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.scripts import SCRIPTS, load
from tests.selection import few

TABLE = load("gpu_launches")
DOCS = Path(SCRIPTS).parent / "docs"
KEPT: dict[str, Any] = json.loads((DOCS / "benchmarks" / "gpu_launches.json").read_text())["cases"]
FEW = ("a2c cartpole", "sac pendulum", "a2c pendulum gru")
CASES = few([*FEW, *(case for case in TABLE.CASES if case not in FEW)], *FEW, "ppo cartpole", "dqn cartpole", "td3 pendulum")
MOST_BYTES = 64
"""The flag of a fault, and the metrics of an update: float32 each."""
NEAR = 0.15
"""Other versions of torch make somewhat more or fewer kernels of an operation."""


def test_the_table_has_all_cases() -> None:
    assert KEPT.keys() == TABLE.CASES.keys()
    page = (DOCS / "gpu.md").read_text()
    for name, found in KEPT.items():
        assert TABLE.row(*TABLE.cells(name, found)) in page, "run: python scripts/gpu_launches.py --write"


@pytest.mark.by_default(2)
@pytest.mark.parametrize("case", CASES)
def test_an_iteration_is_graphs_and_sends_next_to_nothing(case: str) -> None:
    """It is the same work each time (`measure` raises if not), nothing comes from the host, and the host waits for nothing."""
    found, kept = TABLE.measure(case), KEPT[case]
    assert found["bytes_to_device"] == 0 and 0 < found["bytes_to_host"] <= MOST_BYTES
    assert (found["graphs"], found["launches"]) == (kept["graphs"], kept["launches"])
    for key in ("kernels_in_graphs", "gpu_ms"):
        assert abs(found[key] / kept[key] - 1) < NEAR, key


def test_what_the_host_sends_is_seen() -> None:
    counted = TABLE.Counted()
    with TABLE.Operations(counted):
        there = torch.zeros(3, device="meta")
        there.copy_(torch.ones(3))
        there.fill_(2.0)
        there[1:].add_(there[:-1])
    assert (counted.to_device, counted.launches) == (12, 4)
    with pytest.raises(RuntimeError, match="item"), TABLE.Operations(counted):
        there.sum().item()
