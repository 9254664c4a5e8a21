"""What tests of whole runs share: runs that do not evaluate or draw, and what a run has left."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.words import words
from warprun.runs import checkpoint

QUIET = words("""
    tuned=none device=cpu concurrency.threads=1 log.live=false log.tensorboard=false eval.every=never
    eval.episodes=2
""")


def last_record(folder: Path) -> dict[str, Any]:
    """Return the last line of the metrics of a run."""
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the state of the agent in the last checkpoint."""
    tensors = checkpoint.load(folder).tensors
    return {name: tensor for name, tensor in tensors.items() if name.startswith("agent/")}


def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something holds; it is an error if that takes too long."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class LateError(BaseException):
    """Something takes too long; no handler of errors catches this."""


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Raise LateError after some seconds, also out of a blocked system call."""

    def late(number: int, frame: object) -> None:
        raise LateError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    left = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)  # of pytest-timeout
