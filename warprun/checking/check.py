"""`warprun check`: everything that can be found wrong with an environment before an agent trains on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from warprun.checking.external import check_external
from warprun.checking.findings import Finding
from warprun.checking.kernels import check_kernels
from warprun.config.schema import Config
from warprun.environment import Environment
from warprun.runs.build import set_up


def check(config: Config, overrides: Sequence[str]) -> list[Finding]:
    """Check the environment of a config, which `overrides` compose. Raises UserError if it cannot run."""
    config = replace(config, device="cpu", env=replace(config.env, on_nan="stop"), concurrency=replace(config.concurrency, threads=1))
    setup = set_up(config)
    if isinstance(setup.environment, Environment):
        return check_kernels(setup, setup.environment, overrides)
    return check_external(setup)
