"""What Hydra itself prints: the config of a run, where its parts come from, tab completion."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from warprun.config.compose import PRIMARY, VERSION_BASE, explain, register
from warprun.config.registry import CONF
from warprun.errors import UserError


def hydra_main(overrides: Sequence[str], flags: Sequence[str]) -> None:
    """Let Hydra print what `flags`, its own options, ask for. Its errors are raised as UserError."""
    before = sys.argv
    with _hydra_raises():
        # Hydra's parser requires all overrides next to each other, and --info would take one as its value.
        sys.argv = [before[0], *overrides, *flags]
        try:
            register(overrides)
            hydra.main(config_path=f"pkg://{CONF}", config_name=PRIMARY, **VERSION_BASE)(lambda _: None)()
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise UserError(explain(error)) from error
        finally:
            sys.argv = before


@contextmanager
def _hydra_raises() -> Iterator[None]:
    # With this variable Hydra raises its errors. Without it, Hydra prints them and exits.
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before
