"""Names of files in the folders of runs and sweeps, and whether a run can begin in a folder. No numba, no torch."""

from __future__ import annotations

import re
from pathlib import Path

from warprun.files import refuse_links
from warprun.own_module import FOLDER as NETWORKS

LOCK = "lock"
"""The file that the process holds which trains there."""
CONFIG, STATUS, VERSIONS = "config.yaml", "status.json", "versions.json"
ENVIRONMENT = "environment"
"""Folder of the source and the tables of the environment, see `config.kept`."""
LINES = {"last": "checkpoints", "best": "best"}
"""Value of `checkpoint` -> the folder of the checkpoints that it selects: the newest, and the one with the best evaluation."""
PLAN, JOBS = "plan.json", "jobs"
"""In the folder of a sweep: its plan, and the folder of what jobs have beside their runs."""
LOGS = "logs"
"""Folder of what ranks other than 0 print."""
SET_UP = {LOCK, LOGS, ENVIRONMENT, NETWORKS, VERSIONS, f"{VERSIONS}.tmp", f"{CONFIG}.tmp"}
"""What lies in a run folder before its config.yaml, which is written last."""


def folder_name(text: str) -> str:
    """Return text as the name of a folder: letters, digits, `.`, `_` and `-`, which no shell and no reader of settings takes for more."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-") or "run"


def is_free(run_dir: Path) -> bool:
    """Return whether a run can begin in a folder: it is new or empty, or a run that was killed in its set-up left it.

    Raises OSError, and UserError if such a folder has links.
    """
    names = {path.name for path in run_dir.iterdir()} if run_dir.exists() else set()
    left = LOCK in names and names <= SET_UP
    if left:
        refuse_links(run_dir.resolve())
    return not names or left
