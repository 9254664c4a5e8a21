"""`warprun check`: its arguments, its table and its exit code."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from warprun.config.compose import compose
from warprun.errors import UserError

PASSED, FAILED = 0, 1


def check_environment(arguments: Sequence[str]) -> int:
    """Check the environment that `arguments` compose, and print the table; `out=FILE` also writes it as JSON. Raises UserError."""
    out = [argument.removeprefix("out=") for argument in arguments if argument.startswith("out=")]
    overrides = [argument for argument in arguments if not argument.startswith("out=")]
    if not any(override.startswith(("env=", "experiment=")) for override in overrides):
        raise UserError("check needs the name of an environment, such as `warprun check env=cartpole`")
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        raise UserError("check compares compiled kernels with plain Python; unset NUMBA_DISABLE_JIT")
    path = Path(out[-1]) if out else None
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise UserError(f"out={out[-1]}: write the name of a file in a folder that exists, such as out=check.json")
    config = compose(overrides)
    # Imported after the checks, because they import torch and numba.
    from warprun.checking.check import check
    from warprun.checking.findings import print_findings, write_findings

    began = time.perf_counter()
    found = check(config, overrides)
    print_findings(found)
    if path is not None:
        try:
            write_findings(found, config.env.name, time.perf_counter() - began, path)
        except OSError as error:
            raise UserError(f"out={out[-1]}: {error.strerror}") from None
    return FAILED if any(finding.verdict == "failed" for finding in found) else PASSED
