"""Runs of the same number of ranks one after the other in one mpiexec, so that Python starts once in each rank.

    mpiexec -n N python in_turn.py FILE

FILE is a JSON list of the arguments of each run: lists of strings, as `warprun` takes them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from warprun.cli.main import run
from warprun.processes import code_of_rank, is_first, silence
from warprun.runs import signals


def main() -> None:
    """Run them; stop at the first that fails."""
    signals.watch()
    if not is_first():
        silence()
    for arguments in json.loads(Path(sys.argv[1]).read_text()):
        code = run(arguments)
        if code:
            sys.exit(code_of_rank(code))
        if dist.is_initialized():  # a run of warprun leaves this to the end of its process
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
