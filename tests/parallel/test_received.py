"""What a learner knows of the rollouts that it received."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("mpi4py")

from tests.parallel.exchanges import HORIZON, N_ENVS, SPEC
from warprun.learning.communicator import SingleProcess
from warprun.parallel.exchange import WeightsBuffer
from warprun.parallel.received import ReceivedRollouts
from warprun.simulation.device import Device


class Bringing:
    """An exchange that brings so many rollouts, one count after the other."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def begin(self, rollouts: int) -> None: ...

    def publish(self, weights: object) -> None: ...

    def made(self) -> None: ...

    def receive(self, into: object, act: object) -> int:
        return self.counts.pop(0)


@pytest.mark.parametrize("per_update", [1, 3])
def test_a_collection_that_did_not_come_is_not_whole(per_update: int) -> None:
    world = SimpleNamespace(waited_s=0.0, lost=[])
    received = ReceivedRollouts(
        world,  # type: ignore[arg-type]
        WeightsBuffer({"w": torch.zeros(2)}),
        spec=SPEC,
        horizon=HORIZON,
        n_envs=N_ENVS,
        per_update=per_update,
        total_steps=1000,
        device=Device("cpu", "a test"),
        clock=lambda: 0.0,
        communicator=SingleProcess(),
    )
    received.connect(lambda weights, rollout: Bringing([per_update - 1, per_update, 0]), None)  # type: ignore[arg-type, return-value]
    whole = []
    for _ in range(3):
        received.collect(lambda trajectory, row: None)
        whole.append(received.is_whole)
    assert whole == [False, True, False]
