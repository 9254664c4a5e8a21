"""Population-based training and random search: what `python scripts/results.py pbt` measures of a search."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from one_run import Task

FOLDER = Path("search")
INTERVALS = (
    "agent.learning_rate=tag(log,interval(1e-5,1e-1))",
    "agent.gamma=interval(0.8,0.999)",
    "agent.gae_lambda=interval(0.8,1.0)",
    "agent.entropy_coef=tag(log,interval(1e-5,1e-1))",
)
SAMPLERS = {"pbt": ("sampler=pbt", "members=8", "tune.every=4e4"), "random": ("sampler=random", "trials=8", "pruner=none")}
"""By the name of a run."""


def measured(task: Task) -> dict[str, Any]:
    """Search; return the best and the middle return of the members at their end, by fresh episodes. The seed is that of the search.

    Raises subprocess.CalledProcessError if `warprun tune` fails.
    """
    given = {override.partition("=")[0]: override for override in (*task.overrides, *INTERVALS)}  # the last one of a key counts
    sampler, seed = SAMPLERS[given.pop("name").partition("=")[2]], given.pop("seed")
    settings = [*given.values(), *sampler, f"tune.{seed}", "launcher.workers=1", f"sweep_dir={FOLDER}"]
    subprocess.run([sys.executable, "-m", "warprun", "tune", *settings], stdout=subprocess.DEVNULL, check=True)
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted(FOLDER.glob("[0-9]*/metrics.jsonl"))]
    last = [[line["eval/return"] for line in run if "eval/return" in line][-1] for run in lines]
    return {"members": len(last), "best": max(last), "middle": median(last)}
