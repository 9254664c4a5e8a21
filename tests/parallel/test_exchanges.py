"""What gets from actors to learners: every rollout once where none may be lost, undamaged, and by the weights it says."""

import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.parallel.ranks import ONE_THREAD, ROOT
from warprun.parallel.launch import mpiexec

pytest.importorskip("mpi4py")


def exchange(mode: str, window: str, learners: int, actors: int, rollouts: int, delay_us: float, out: Path) -> list[list[list[int]]]:
    """Return, for each learner, the [actor, sequence, version, damaged] of what it received."""
    given = [mode, window, str(learners), str(rollouts), str(delay_us), str(out)]
    command = [mpiexec(), "-n", str(learners + actors), sys.executable, "-m", "tests.parallel.exchanges", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=ROOT, env=os.environ | ONE_THREAD)
    assert done.returncode == 0, done.stderr + done.stdout
    return [json.loads((out / f"{learner}.json").read_text()) for learner in range(learners)]


QUEUE = 2
"""`concurrency.queue`."""


@pytest.mark.by_default(0)
@pytest.mark.parametrize(
    ("mode", "learners", "actors", "rollouts"),
    [
        ("rma", 2, 3, 300),
        *(pytest.param("rma", learners, actors, 10_000, marks=pytest.mark.slow) for learners in (1, 2, 3) for actors in (3, 6)),
        pytest.param("rma", 1, 1, 10_000, marks=pytest.mark.slow),
        pytest.param("async", 3, 6, 10_000, marks=pytest.mark.slow),
        pytest.param("rma", 3, 4, 31, marks=pytest.mark.slow),  # the last ones do not come out even
        pytest.param("async", 2, 3, 300, marks=pytest.mark.slow),
    ],
)
def test_no_rollout_is_lost_or_used_twice(mode: str, learners: int, actors: int, rollouts: int, tmp_path: Path) -> None:
    received = exchange(mode, "queue", learners, actors, rollouts, 300, tmp_path)
    everything = [tuple(entry[:2]) for own in received for entry in own]
    assert len(everything) == rollouts
    assert len(set(everything)) == rollouts
    for actor in range(actors):  # the last ones too
        made = sorted(sequence for a, sequence in everything if a == actor)
        assert made == list(range(len(made)))
    assert not any(damaged for own in received for *_, damaged in own)
    for own in received:  # a learner gets the rollouts of an actor in order
        for actor in range(actors):
            order = [sequence for a, sequence, *_ in own if a == actor]
            assert order == sorted(order)


@pytest.mark.long
def test_an_end_mark_is_never_lost(tmp_path: Path) -> None:
    """Most actors end before they have made a rollout, and learners help each other."""
    assert sum(map(len, exchange("rma", "queue", 3, 4, 2, 2000, tmp_path))) == 2


@pytest.mark.long
def test_lag_is_seen_and_bounded(tmp_path: Path) -> None:
    """A ring holds `concurrency.queue` rollouts, and an actor makes one more meanwhile.

    Few come later: of an actor that the system lets wait while it makes one.
    """
    (received,) = exchange("rma", "queue", 1, 3, 300, 500, tmp_path)
    lags = sorted(update - version for update, (_, _, version, _) in enumerate(received))
    assert 0 < lags[len(lags) * 19 // 20] <= 3 * (QUEUE + 2)


@pytest.mark.slow
def test_range_never_collides_and_random_does_as_the_closed_form_says(tmp_path: Path) -> None:
    """P(no two of L learners draw the same of A actors) = A! / ((A - L)! A^L)."""
    learners, actors, rounds = 2, 4, 400
    for window in ("range", "random"):
        (tmp_path / window).mkdir()
        received = exchange("rma", window, learners, actors, rounds, 0, tmp_path / window)
        assert not any(damaged for own in received for *_, damaged in own)
        together = list(zip(*([entry[0] for entry in own] for own in received), strict=True))
        collisions = sum(len(set(drawn)) < learners for drawn in together)
        if window == "range":
            assert collisions == 0
            continue
        chance = 1.0 - math.perm(actors, learners) / actors**learners
        assert abs(collisions - chance * len(together)) < 3.0 * math.sqrt(len(together) * chance * (1.0 - chance))
        drawn = Counter(entry[0] for own in received for entry in own)
        assert len(drawn) == actors
