"""Repeat steps in the CUDA simulator, which needs a process of its own.

    python -m warprun.checking.simulated FOUND.json STEPS.npz KEY=VALUE ...

writes the differences, and a digest of the tables as this process makes them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from warprun.environment import Environment
from warprun.errors import UserError

SECONDS = 8.0


def main(found: Path, steps: Path, overrides: Sequence[str]) -> None:
    """Repeat the steps that file `steps` holds in the environment of `overrides`, and write `found`."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    from warprun.checking.agreement import Steps, disagreements, repeat, stepped
    from warprun.checking.rolls import digests
    from warprun.config.compose import compose
    from warprun.runs.build import make_engine, set_up

    recorded = Steps.load(steps)
    setup = set_up(replace(compose(overrides), device="cudasim"))
    assert isinstance(setup.environment, Environment)
    problems, count = [], 0
    try:
        engine = make_engine(setup, len(recorded.given[0]["terminated"]), 1, 0)
        engine.reset()
        differences = repeat(partial(stepped, engine), recorded, SECONDS)
        count = differences.steps
        problems = [[p.message, p.verdict] for p in disagreements(differences, "the CUDA simulator", setup.environment)]
    except UserError as error:
        problems = [[f"in the CUDA simulator: {error}", "failed"]]
    found.write_text(json.dumps({"problems": problems, "steps": count, "recorded": len(recorded.given), "tables": digests(setup.tables)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
