"""How far a run is: what its status.json says, and of one that has not ended what it has recorded since. No torch."""

from __future__ import annotations

import math
from pathlib import Path

from warprun.runs import rundir
from warprun.runs.records.jsonl import JsonLines, last_rows


def facts(folder: Path) -> dict[str, object]:
    """Return the content of status.json with the newest `env_steps`, `wall_s`, `progress`, and returns `train`, `eval` and `eval_stderr`.

    A run writes it with a checkpoint and at its end, and records in between.
    """
    status = rundir.read_status(folder)
    if status.get("state") in rundir.ENDED:
        return status
    part = f"{status['group']}/" if status.get("group") else ""  # of several groups the one that counts
    evaluated = f"eval/{part}return"
    tags = {"wall_s": "wall_s", "progress": "train/progress", "train": f"train/{part}return", "eval": evaluated}
    found: dict[str, object] = {}
    for row in last_rows(folder / JsonLines.name):
        found.setdefault("env_steps", int(row["env_steps"]))
        new = {name: row[tag] for name, tag in tags.items() if name not in found and math.isfinite(row.get(tag, math.nan))}
        found |= new | ({"eval_stderr": row.get(f"{evaluated}_stderr")} if "eval" in new else {})
        if len(found) == len(tags) + 2:  # env_steps and eval_stderr
            break
    return status | found
