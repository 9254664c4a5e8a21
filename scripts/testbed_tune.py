"""Search settings for held-out tasks of the test bed with `warprun tune`, and train other seeds with the best and with the defaults.

    python scripts/testbed_tune.py [--only TASK ...] [--again]

The search names no space: it is that of the agent. It goes on for MINUTES with two workers; a trial has SECONDS on one thread and
seed 0, or less if it is pruned. Then SEEDS other seeds are trained for as long, with the defaults and with the settings of the best
trial; these runs do not end before. Tasks are kept in docs/benchmarks/testbed_tune.json and not measured again, except with --again.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common import DOCS, ROOT, settings, table
from testbed import AS_KEPT, TASKS, cell, of_cell

KEPT = DOCS / "benchmarks" / "testbed_tune.json"
SEARCHED = ["detectors", "forest", "island", "shield", "synthesis"]
"""Held-out tasks, of those that were written last."""
N_ENVS = 1000
MINUTES, SECONDS, WORKERS = 4, 30, 2
SEEDS = range(10, 15)


def best_of(run: str, folder: Path) -> tuple[list[str], int]:
    """Search the settings of a run; return those of the best trial, and how many trials there were."""
    words = [*run.split(), "trials=1000", f"minutes={MINUTES}", f"launcher.workers={WORKERS}", f"sweep_dir={folder}"]
    told = subprocess.run([sys.executable, "-m", "warprun", "tune", *words], stdout=subprocess.PIPE, text=True, check=True).stdout
    best = next(line for line in told.splitlines() if line.startswith("best: trial"))
    return [word for word in best.split()[1:] if word.startswith("agent.")], len(list((folder / "jobs").iterdir()))


def compared(name: str) -> dict[str, Any]:
    """Search settings for a task; return them, and the runs of other seeds with the defaults and with these."""
    task = TASKS[name]
    run = f"agent=ppo {AS_KEPT} {task.overrides} env.solved_at={task.bar} stop_when_solved=false n_envs={N_ENVS} max_minutes={SECONDS / 60}"
    with tempfile.TemporaryDirectory() as folder:
        best, trials = best_of(run, Path(folder) / "study")
    cells = [[f"{run} seed={seed} {more}".strip() for seed in SEEDS] for more in ("", " ".join(best))]
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        defaults, tuned = pool.map(of_cell, cells, [math.inf] * len(cells))
    return {"trials": trials, "best": best, "defaults": list(defaults.values()), "tuned": list(tuned.values())}


def table_of(kept: dict[str, dict[str, Any]]) -> str:
    """Return the table of the tasks that were searched."""
    titles = ["task", "bar", "defaults", "best trial", "trials", "settings of `agent` in the best trial"]
    return table(titles, [[name, f"{TASKS[name].bar:g}", *_cells(kept[name])] for name in sorted(kept)])


def _cells(found: dict[str, Any]) -> list[str]:
    words = " ".join(word.removeprefix("agent.") for word in found["best"])
    shown = re.sub(r"\d+\.\d{4,}(e-\d+)?", lambda number: f"{float(number[0]):.3g}", words)
    return [cell(found["defaults"]), cell(found["tuned"]), found["trials"], f"`{shown}`"]


def of_page(kept: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the mark and the table of docs/defaults.md."""
    if kept:
        yield "test bed, searched", table_of(kept)


def main() -> None:
    """Search and compare the tasks that are missing, and print the table."""
    chosen = settings(__doc__, only=SEARCHED, again=False)
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    for name in chosen.only:
        if name not in kept or chosen.again:
            kept[name] = compared(name)
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")
            print(name, *_cells(kept[name]), flush=True)
    print(table_of(kept))


if __name__ == "__main__":
    with chdir(ROOT / "scripts" / "testbed"):
        main()
