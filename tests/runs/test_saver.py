"""What checkpoints cost, and that their share of the time of a run is limited."""

import statistics
import time

import pytest
import torch

from warprun.config.cadence import Cadence, Moment, Recurring
from warprun.config.schema import CheckpointConfig
from warprun.runs import checkpoint
from warprun.runs.measured import Notes
from warprun.runs.rundir import Held
from warprun.runs.saver import SHARE, Saver


class Clock:
    """Time as the saver sees it, in s."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_the_next_checkpoint_waits_until_its_share_of_the_time_is_kept(tmp_path, monkeypatch):
    clock = Clock()

    def write(*arguments: object) -> None:
        clock.now += 3.0

    monkeypatch.setattr("warprun.runs.saver.time", clock)
    monkeypatch.setattr(checkpoint, "save", write)
    saver = Saver(Held(tmp_path), CheckpointConfig(), print)
    by_time = Recurring(Cadence("seconds", 1.0), Moment(0.0, 0, 0, 0.0)), Notes(print, [])
    assert saver.is_affordable(*by_time)
    saver.save(1, {}, {})
    clock.now += 3.0 / SHARE - 0.01
    assert not saver.is_affordable(*by_time)
    clock.now += 0.02
    assert saver.is_affordable(*by_time)


@pytest.mark.reliability
@pytest.mark.parametrize(("megabytes", "limit_s"), [(0.1, 0.1), (33, 0.6), (330, 6.0)])
def test_what_a_checkpoint_costs(tmp_path, megabytes, limit_s):
    state = {"replay": torch.rand(int(megabytes * 1e6 / 4)), "network": torch.rand(64, 64)}
    taken = []
    for step in range(5):
        began = time.perf_counter()
        checkpoint.save(tmp_path, step, state, {})
        taken.append(time.perf_counter() - began)
    print(f"{megabytes} MB: {statistics.median(taken):.3f} s")
    assert statistics.median(taken) < limit_s
