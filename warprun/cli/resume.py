"""`resume=`: which run continues, and with which settings. No torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser

from warprun.config import kept
from warprun.config.checks import check
from warprun.config.compose import change, compose, differences
from warprun.config.overrides import read
from warprun.config.schema import Config, as_measured, from_dict, to_dict
from warprun.errors import UserError, shown
from warprun.files import refuse_links
from warprun.run_folder import CONFIG
from warprun.runs import rundir
from warprun.runs.opening import open_config


class Continued(NamedTuple):
    """The arguments of `runs.train.resume`."""

    config: Config
    folder: Path
    stored: Config
    changed: list[str]


def continued(overrides: Sequence[str]) -> Continued | list[str]:
    """Return the run that `overrides` continue, or the overrides of a new run.

    `resume=RUN` and `resume=latest` take the settings of the run, with the other overrides. `resume=auto` takes those of the command, and
    continues the run in `run_dir` if there is one. With `trust=true` the code in the folder may be that of somebody else. Raises UserError.
    """
    if not any(override.startswith("resume=") for override in overrides):
        return list(overrides)
    which, rest = _taken("resume", overrides)
    trust, rest = _taken("trust", rest)
    if trust not in (None, "True", "False"):
        raise UserError(f"trust must be true or false, not {shown(trust)}")
    trusted = trust == "True"
    if which == "auto":
        return _continued_if_begun(rest, trusted)
    root, rest = _taken("output_root", rest)
    folder = rundir.latest(Path(root or "outputs")) if which == "latest" else Path(str(which))
    saved = rundir.read_config(folder)
    return _continued(folder, saved, change(saved, rest), trusted)


def _continued_if_begun(overrides: list[str], trusted: bool) -> Continued | list[str]:
    run_dir, rest = _taken("run_dir", overrides)
    if run_dir is None:
        raise UserError("resume=auto continues the run in run_dir if there is one: add run_dir=FOLDER")
    folder = Path(run_dir)
    if not (folder / CONFIG).exists():
        return overrides
    saved, stored = rundir.read_config(folder), replace(compose(rest), run_dir=run_dir)
    then = from_dict(saved)
    stored = now = as_measured(stored, then)
    for key, former, given in (
        ("env", then.env.name, now.env.name),
        ("env.module", then.env.module, now.env.module),
        ("agent", then.agent.name, now.agent.name),
        ("concurrency", then.concurrency.name, now.concurrency.name),
    ):
        if former != given:
            raise UserError(f"{key}={given}: the run in {folder} has {key}={former}, and a run that continues keeps it")
    return _continued(folder, saved, stored, trusted)


def _continued(folder: Path, saved: dict[str, object], stored: Config, trusted: bool) -> Continued:
    refuse_links(folder.resolve())  # the folder itself can be a link of the user
    config = open_config(folder, stored, trusted)
    check(replace(config, run_dir=None, output_root=os.path.join(".", folder)))  # no folder is made
    own = kept.find(config.env.module)
    for line in own.differences() if own else []:
        print(line)
    return Continued(config, folder, stored, differences(to_dict(from_dict(saved)), to_dict(stored)))


def _taken(key: str, overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the last value of `key` as text, None if it is not given, and the other overrides. Raises UserError."""
    own = [override for override in overrides if override.partition("=")[0] == key]
    parsed = OverridesParser.create().parse_overrides(read(own))
    return (str(parsed[-1].value()) if parsed else None), [override for override in overrides if override not in own]
