"""The command line: its verbs and exit codes. Each failure is one line. Heavy modules are imported only when needed."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from warprun.cli.from_hydra import CONFIG_DIR, CONFIG_NAME, config_dir_taken, translated
from warprun.cli.loading import begin_to_load_torch
from warprun.cli.process import DONE, attempt, name_threads
from warprun.cli.streams import close_streams
from warprun.config.registry import check_working_folder, config_dir, configs_from, options
from warprun.errors import UserError, nearest, program, require, shown, typed
from warprun.processes import code_of_rank, end_with_parent, is_first, silence, started, starter

HYDRA_FLAGS = ("--cfg", "-c", "--info", "-i", "--resolve", "--package", "-p", "--shell-completion", "-sc", "--hydra-help")
"""Options with which Hydra prints something instead of starting a run."""
MULTIRUN_FLAGS = ("-m", "--multirun")
VERBS = {
    "train": "warprun.cli.main:train",
    "eval": "warprun.cli.trained:evaluate",
    "play": "warprun.cli.trained:play",
    "export": "warprun.cli.trained:export",
    "new": "warprun.cli.new:new",
    "envs": "warprun.cli.environments:envs",
    "check": "warprun.cli.environments:check",
    "bench": "warprun.cli.environments:bench",
    "report": "warprun.cli.trained:report",
    "data": "warprun.cli.environments:data",
    "scripts": "warprun.cli.environments:scripts",
    "job": "warprun.cli.job:job",
    "status": "warprun.cli.status:status",
    "cancel": "warprun.cli.status:cancel",
    "tune": "warprun.cli.sweeps:tune",
}
"""Verb -> module and function, which takes the arguments after the verb and returns the exit code; imported when it is asked for."""
SERVED = ("eval", "play", "check")
"""Verbs that rank 0 executes, if several processes were started; the others serve its environments, if these are parallel programs."""
FLAGS_WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--info", "-i")
FLAGS_WITH_OPTIONAL_VALUE = ("--info", "-i")


def main() -> None:
    """Run the command line and exit with its code; `warprun.__main__` has opened the streams and watches signals."""
    end_with_parent()
    if starter() == "torchrun" or "concurrency=ddp" in sys.argv:
        from warprun.kernels.driver import take_share

        take_share()  # before anything looks for a GPU
    if not is_first():
        silence()
    code = run(sys.argv[1:])
    close_streams()
    name_threads()
    gc.freeze()  # Python looks for cycles among all objects as it exits: half a second, and nothing is gained
    sys.exit(code_of_rank(code) if code and started() > 1 else code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""

    def command() -> int:
        for argument in arguments:
            require("\0" not in argument, f"{shown(argument)}: an argument cannot have a zero byte")
        check_working_folder()
        folder, rest = config_dir_taken(arguments)
        with configs_from(folder or config_dir()):
            code = _dispatch(rest)
        sys.stdout.flush()  # a full disk fails the command, also where all that it says fits into the buffer
        return code

    outcome = attempt(command)
    outcome.tell()
    return outcome.code


def _dispatch(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        from warprun.cli.help import help_text

        print(help_text())
        return DONE
    if "--version" in arguments:
        print(f"warprun {_version()}")
        return DONE
    arguments = translated(arguments)
    verb, rest = ("train", arguments)
    if arguments and not arguments[0].startswith(("-", "~")) and "=" not in arguments[0]:
        verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        raise UserError(f"unknown verb {shown(verb)}{_meant(verb, rest)} (there are: {', '.join(VERBS)}; a setting is written key=value)")
    module, _, name = VERBS[verb].partition(":")
    command: Callable[[list[str]], int] = getattr(import_module(module), name)
    if verb in SERVED and started() > 1:
        from warprun.parallel.joining import with_all_ranks

        return with_all_ranks(lambda: command(rest))
    return command(rest)


def _meant(word: str, rest: Sequence[str]) -> str:
    """Return the end of a message that refuses a verb: the setting that it stands for, or the most similar verb."""
    from warprun.config.schema import Config

    if word in ("resume", *Config.__dataclass_fields__) and rest and "=" not in rest[0]:
        return f"; write {word}={typed(Path(rest[0])) if os.path.exists(rest[0]) else rest[0]}"
    if word in ("help", "version"):
        return f"; write {program()} --{word}"
    return f"; write env={word}" if word in options("env") else nearest(word, VERBS)


def train(arguments: list[str]) -> int:
    """Train a run or a sweep, or print what options of Hydra ask for; return the exit code. Raises UserError."""
    overrides, flags = _split(arguments)
    shown_by = [flag for flag in flags if flag not in MULTIRUN_FLAGS]
    if flags == shown_by and not any(override.startswith("population=") for override in overrides):
        if not flags:
            begin_to_load_torch()
            from warprun.cli.train import train_one

            return train_one(overrides)
        from warprun.cli.show import show

        return show(overrides, flags)
    from warprun.cli.sweeps import show_first, sweep

    if started() > 1:
        raise UserError(f"-m: a sweep is one process, and {started()} were started; start it once")
    return show_first(overrides, shown_by) if shown_by else sweep(overrides)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the overrides among `arguments`, and the options with their values. Raises UserError for an option that does not exist."""
    overrides: list[str] = []
    flags: list[str] = []
    value_of = ""
    for argument in arguments:
        known = (*HYDRA_FLAGS, *MULTIRUN_FLAGS, *CONFIG_DIR, *CONFIG_NAME, "--help", "--version")
        if argument.startswith("-"):
            flag, equals, _ = argument.partition("=")
            if flag not in known:
                raise UserError(f"unknown option {shown(flag)}{nearest(flag, known)}; `warprun --help` lists them")
            value_of = "" if equals else flag
            flags.append(argument)
        elif value_of in FLAGS_WITH_VALUE and not (value_of in FLAGS_WITH_OPTIONAL_VALUE and "=" in argument):
            value_of = ""
            flags.append(argument)
        else:
            value_of = ""
            overrides.append(argument)
    return overrides, flags


def _version() -> str:
    try:
        return version("warprun")
    except PackageNotFoundError:
        return "(a checkout that is not installed)"
