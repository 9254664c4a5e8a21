"""A whole run on the stand-in for the CUDA driver: rollouts, updates and evaluations by the kernels of a GPU.

    python -m tests.ptx.solved FILE.json FOLDER OVERRIDE...

writes how the run ended and its return.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from tests.ptx.hosted import Driver
from tests.ptx.members import on_a_gpu
from tests.ptx.project import DEVICE
from warprun.cli.train import train
from warprun.kernels import ahead
from warprun.learning.settings.plan import Choice
from warprun.runs import build
from warprun.simulation import cuda_layers


def main(file: str, folder: str, *overrides: str) -> None:
    driver, make_plan = Driver(), build.make_plan
    with (
        on_a_gpu(),
        patch.object(ahead, "helpers", lambda *_: 0),
        patch.object(build, "choose", lambda _: DEVICE),
        patch.object(cuda_layers, "verify", lambda *_: None),  # which asks torch for the GPU
        patch.object(build, "make_plan", lambda *given: replace(make_plan(*given), repeated=Choice("Python"))),
    ):
        result = train([*overrides, f"run_dir={folder}", "device=cpu", "log.live=false"])
    found = {"status": result.status, "return": result.eval_return, "env_steps": result.env_steps, "launches": driver.number("launches")}
    Path(file).write_text(json.dumps(found | {"why not tensor cores": cuda_layers.why_not()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
