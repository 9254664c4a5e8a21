"""Sums and orders of processes that learn, in a group of one: what the watch counts, and that sums of a GPU go through NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from warprun.parallel.distributed import Distributed
from warprun.parallel.following import Order, give, take
from warprun.parallel.watch import Watch

WATCH = cast(Watch, SimpleNamespace(raise_reason=lambda: None))


@pytest.fixture
def alone() -> Iterator[Distributed]:
    """Return a communicator whose only process says that it is one of two."""
    made = Distributed(0, 1, torch.device("cpu"), WATCH)
    made.meet(dist.HashStore())
    made.size = 2
    yield made
    dist.destroy_process_group()


def test_orders_count_where_a_graph_hides_the_sums(alone: Distributed) -> None:
    """Else a process that is stuck in an update that a CUDA graph repeats would never be found."""
    give(alone, Order.ITERATE, 0.5)
    assert alone.joined == 1
    assert take(alone) == (Order.END, 0.0)
    assert alone.joined == 2
    alone.sum_(torch.zeros(3))
    assert alone.joined == 3


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_tensors_of_gpus_are_added_by_nccl(device: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(dist, "init_process_group", lambda *given, **named: asked.append((given[0], named["rank"], named["world_size"])))
    Distributed(1, 4, torch.device(device), WATCH).meet(dist.HashStore())
    assert asked == [(backend, 1, 4)]
