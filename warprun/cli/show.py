"""The options of Hydra that print: the config of a run, the origin of its parts, tab completion."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr

import hydra

from warprun.cli.process import DONE
from warprun.cli.train import Continued, continued
from warprun.config.compose import PRIMARY, VERSION_BASE, derived, register
from warprun.config.hydra_errors import explained
from warprun.config.overrides import read
from warprun.config.registry import CONF
from warprun.config.schema import to_dict
from warprun.errors import UserError, shown
from warprun.runs import rundir

COMPLETION_FLAGS = ("--shell-completion", "-sc")


def show(overrides: Sequence[str], flags: Sequence[str]) -> int:
    """Print what `flags` ask for of the run that `overrides` describe or continue; return the exit code. Raises UserError."""
    if any(flag in COMPLETION_FLAGS for flag in flags):
        return _complete(overrides, flags)
    asked = continued(overrides)
    if isinstance(asked, Continued):
        if list(flags) != ["--cfg", "job"]:
            raise UserError(f"{' '.join(flags)}: a run that continues has its config from its folder, and --cfg job prints it")
        print(rundir.config_text(to_dict(asked.stored)).decode(), end="")
        return DONE
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            hydra_main(read([*asked, *derived(asked)]), flags)
    except SystemExit as stop:
        if stop.code:
            raise UserError(complaint.getvalue().strip().rpartition("error: ")[2]) from stop
    return DONE


def _complete(overrides: Sequence[str], flags: Sequence[str]) -> int:
    """Let Hydra install tab completion, or answer a shell that asks for completions."""
    action, _, shell = " ".join(overrides).partition("=")
    if action not in ("install", "uninstall", "query") or shell not in ("bash", "zsh", "fish"):
        raise UserError(f"{shown(' '.join(overrides))}: write install=bash, or zsh or fish")
    # The shell passes the whole command line, and Hydra does not know verbs.
    line = os.environ.get("COMP_LINE", "")
    if not line and any(override.startswith("query=") for override in overrides):
        raise UserError("query= is for shells, which set COMP_LINE; write -sc install=bash, or zsh or fish")
    words = line.split(" ", 2)
    if words[1:2] == ["train"] and len(words) == 3:
        os.environ["COMP_LINE"] = f"{words[0]} {words[2]}"
        os.environ["COMP_POINT"] = str(int(os.environ.get("COMP_POINT", len(line))) - len("train "))
    hydra_main(overrides, flags)
    return DONE


def hydra_main(overrides: Sequence[str], flags: Sequence[str]) -> None:
    """Let Hydra print what `flags`, its own options, ask for. Its errors are raised as UserError."""
    before = sys.argv
    with _hydra_raises(), _logging_kept():
        # Hydra's parser requires all overrides next to each other, and --info would take one as its value.
        sys.argv = [before[0], *overrides, *flags]
        try:
            with explained():
                register(overrides)
                hydra.main(config_path=f"pkg://{CONF}", config_name=PRIMARY, **VERSION_BASE)(lambda _: None)()
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


@contextmanager
def _logging_kept() -> Iterator[None]:
    # For --info, Hydra lets every library log its debugging messages, and leaves it so.
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
