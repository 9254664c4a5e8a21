"""`warprun train`: train one run, new or continued, in the processes that it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser

from warprun.algorithms import AGENTS
from warprun.cli.from_hydra import translated
from warprun.cli.loading import import_torch, uncollected
from warprun.cli.process import DONE
from warprun.config import environment_copy
from warprun.config.checks import check, check_folder, check_place
from warprun.config.compose import change, compose, differences
from warprun.config.overrides import read
from warprun.config.registry import has_functions, source_of
from warprun.config.schema import Config, as_before, from_dict, from_saved, to_dict
from warprun.errors import RunHasEndedError, UserError, program, shown, typed
from warprun.files import refuse_links
from warprun.kernels import ahead
from warprun.kernels.driver import prepare, why_no_cuda
from warprun.learning.settings.on_policy import OnPolicyConfig
from warprun.processes import code_of_rank, started, usable_cores
from warprun.run_folder import CONFIG
from warprun.runs import rundir
from warprun.runs.gpu_failures import failure_of
from warprun.runs.opening import open_config

if TYPE_CHECKING:
    from warprun.runs.crew import Crew
    from warprun.runs.result import Result


Compose = Callable[[Sequence[str]], Config]
"""Composes a config from overrides and checks it: `config.compose.compose`, or one that remembers former ones."""


def train(overrides: Sequence[str] = ()) -> Result:
    """Train one run from overrides such as "env=cartpole" and "n_envs=1e4", and return its result.

    Raises UserError for a mistake in the overrides, the config or the environment, TrainingFailed for a run that is lost, and
    KeyboardInterrupt for one that was stopped. Of several processes rank 0 returns a result; the others exit.
    """
    if isinstance(overrides, str) or not all(isinstance(override, str) and not override.startswith("-") for override in overrides):
        raise UserError(f"{shown(str(overrides))}: train takes a list of settings without options, such as ['env=cartpole', 'seed=3']")
    result = _run(_asked(translated(overrides)))
    if result is None:
        sys.exit(DONE)
    return result


def train_one(overrides: list[str], compose: Compose = compose) -> int:
    """Train the run that `overrides` describe, in the processes that it needs, and return the exit code. Raises what `train` does."""
    from warprun.sweeps.launch import is_of_sweep

    for override in overrides:
        if is_of_sweep(override):
            raise UserError(f"{shown(override)} is a setting of a sweep: add -m")
    try:
        asked = _asked(overrides, compose)
        config = asked.config if isinstance(asked, Continued) else asked
        if config.concurrency.starts():
            from warprun.parallel.launch import start

            return start(config, overrides)
        import_torch(config)
        result = _run(asked)
    except RunHasEndedError as error:
        if "resume=auto" not in overrides:
            raise
        print(error, flush=True)  # a batch job that is started once more than needed has nothing to do
        return code_of_rank(DONE) if started() > 1 else DONE  # the other ranks of MPI have failed, and meet this one
    if result is None:
        return DONE  # rank 0 says the rest
    print_next_steps([result.folder], result.folder)
    return DONE


def _asked(overrides: Sequence[str], compose: Compose = compose) -> Continued | Config:
    """Return the run that `overrides` describe: one to continue, or the config of a new one. Raises UserError."""
    from warprun.parallel.joining import in_all_ranks

    def compose_run() -> Continued | Config:
        asked = continued(overrides, compose)
        if isinstance(asked, Continued):
            return asked
        config = compose(asked)
        check_place(config)
        return config

    def mode(asked: Continued | Config | None) -> str:
        if asked is None:  # all that is known is what was typed
            return "ddp" if "concurrency=ddp" in overrides else ""
        return (asked.config if isinstance(asked, Continued) else asked).concurrency.name

    asked = in_all_ranks(compose_run, mode)
    config = asked.config if isinstance(asked, Continued) else asked
    prepare(config.device)
    _expect_kernels(config)
    return asked


def _expect_kernels(config: Config) -> None:
    """Let processes that will compile kernels for a new environment (`kernels.ahead`) import their modules while this one imports torch."""
    on_gpu = config.device == "cuda" or (config.device == "auto" and why_no_cuda() is None)
    processes = ahead.helpers(config.concurrency.threads or usable_cores(), on_gpu)
    alone = config.concurrency.name == "single" and config.device != "cudasim"
    learns = isinstance(config.agent, OnPolicyConfig) and config.agent.name in AGENTS and config.engine.fused
    is_copy = environment_copy.find(config.env.module) is not None  # of a run, whose kernels are there
    if processes and alone and learns and not is_copy and has_functions(config.env.module):
        agent, _, _ = AGENTS[config.agent.name].agent.partition(":")
        of_gpu = [f"warprun.learning.kernels.cuda.{name}" for name in ("returns", "optimizer", "statistics")]
        # On a CPU an order imports the little that it needs, and no torch.
        modules = ("warprun.learning.kernels.choose", agent, *of_gpu) if on_gpu else ()
        early = None if on_gpu else ahead.Early("warprun.runs.early", "compile_kernels", config)
        ahead.expect(config.env.name, modules, processes, source_of(config.env.module), early)


def _run(asked: Continued | Config) -> Result | None:
    """Train, as the rank that this process is; return the result, in ranks other than 0 None."""
    from warprun.parallel.joining import take_part

    config = asked.config if isinstance(asked, Continued) else asked

    def drive(crew: Crew | None) -> Result:
        # Imported after the checks, because it imports torch and numba.
        if isinstance(asked, Continued):
            with uncollected():
                from warprun.runs.train import resume

            return resume(*asked, crew)
        with uncollected():
            from warprun.runs.train import train

        return train(asked, crew)

    try:
        return take_part(config, drive, lambda error: failure_of(error, config) or error)
    finally:
        ahead.dismiss()


def print_next_steps(runs: Sequence[Path], best: Path) -> None:
    """Print the commands that evaluate and show `runs`, folders of finished runs; `best` is the one to evaluate."""
    commands = next_steps(runs, best)
    if commands:
        # As for the records of a run, a closed pipe or a full disk is not a failure.
        with suppress(OSError):
            print("\n  ".join(["next:", *commands]), flush=True)


def next_steps(runs: Sequence[Path], best: Path) -> list[str]:
    """Return the commands of `print_next_steps`, without those whose input or program is missing."""
    place = runs[0] if len(runs) == 1 else Path(os.path.commonpath([run.absolute() for run in runs]))
    commands = []
    if (best / "checkpoints" / "manifest.json").is_file():
        commands.append(f"{program()} eval {typed(best)}")
    if any(any(run.glob("events.out.tfevents.*")) for run in runs):
        commands.append(f"{program('tensorboard', 'tensorboard.main')} --logdir {typed(place)}")
    if any((run / "metrics.jsonl").is_file() for run in runs):
        commands.append(f"{program()} report {typed(place)}")
    return commands


class Continued(NamedTuple):
    """The arguments of `runs.train.resume`."""

    config: Config
    folder: Path
    stored: Config
    changed: list[str]


def continued(overrides: Sequence[str], compose: Compose = compose) -> Continued | list[str]:
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
        return _continued_if_begun(rest, trusted, compose)
    root, rest = _taken("output_root", rest)
    folder = rundir.latest(Path(root or "outputs")) if which == "latest" else Path(str(which))
    saved = rundir.read_config(folder)
    return _continued(folder, from_dict(saved), change(saved, rest), trusted)


def _continued_if_begun(overrides: list[str], trusted: bool, compose: Compose) -> Continued | list[str]:
    run_dir, rest = _taken("run_dir", overrides)
    if run_dir is None:
        raise UserError("resume=auto continues the run in run_dir if there is one: add run_dir=FOLDER")
    folder = Path(run_dir)
    if not (folder / CONFIG).exists():
        return overrides
    saved, stored = rundir.read_config(folder), replace(compose(rest), run_dir=run_dir)
    then = from_saved(saved, stored)
    for key, former, given in (
        ("env", then.env.name, stored.env.name),
        ("env.module", then.env.module, stored.env.module),
        ("agent", then.agent.name, stored.agent.name),
        ("concurrency", then.concurrency.name, stored.concurrency.name),
    ):
        if former != given:
            raise UserError(f"{key}={given}: the run in {folder} has {key}={former}, and a run that continues keeps it")
    return _continued(folder, then, as_before(stored, then), trusted)


def _continued(folder: Path, then: Config, stored: Config, trusted: bool) -> Continued:
    refuse_links(folder.resolve())  # the folder itself can be a link of the user
    config = open_config(folder, stored, trusted)
    check(config)
    check_folder("resume", str(folder))
    own = environment_copy.find(config.env.module)
    for line in own.differences(config.env.options, config.env.time_limit) if own else []:
        print(line)
    return Continued(config, folder, stored, differences(to_dict(then), to_dict(stored)))


def _taken(key: str, overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the last value of `key` as text, None if it is not given, and the other overrides. Raises UserError."""
    own = [override for override in overrides if override.partition("=")[0] == key]
    values = [_value(override) for override in own]
    return (values[-1] if values else None), [override for override in overrides if override not in own]


@lru_cache
def _value(override: str) -> str:
    (parsed,) = OverridesParser.create().parse_overrides(read([override]))
    return str(parsed.value())
