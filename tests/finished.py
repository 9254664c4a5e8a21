"""What tests of whole runs share: runs that do not evaluate or draw, and what a run has left."""

import json
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
