"""The verbs of trained runs: `warprun eval`, `play`, `export` and `report`. Torch is imported after the checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from warprun.cli.loading import begin_to_load_torch, import_torch, uncollected
from warprun.cli.process import DONE
from warprun.cli.settings import check_settings, is_setting, one_run, read_settings, with_convolutions
from warprun.config.registry import is_of_warprun
from warprun.config.schema import from_dict
from warprun.errors import MOST_PRINTED, UserError, check_one_of, printable, program, typed
from warprun.kernels.driver import prepare
from warprun.playing.paths import record_paths
from warprun.run_folder import LINES
from warprun.runs import rundir
from warprun.runs.records.terminal import table_console

if TYPE_CHECKING:
    from warprun.playing.play import Order, Played


@dataclass
class _EvalSettings:
    """The settings of `warprun eval`."""

    episodes: int = 0
    """0: as many as the final evaluation of the run had."""
    greedy: bool = True
    device: str = "auto"
    seed: int = 0
    output_root: str = "outputs"
    checkpoint: str = "last"
    trust: bool = False
    """Run the code of a run folder that this user did not make."""


def evaluate(arguments: Sequence[str]) -> int:
    """Evaluate a trained agent over fresh episodes, and print the results. Raises UserError."""
    settings = _EvalSettings()
    run = one_run("eval", read_settings("eval", settings, arguments))
    check_settings(settings)
    folder = _folder(run, settings.output_root)
    config = from_dict(rundir.read_config(folder))
    begin_to_load_torch()
    prepare(settings.device)
    if is_of_warprun(config.env.module):  # else that is code, which only `runs.opening` may run
        import_torch(config)
    with uncollected():
        from warprun.runs.evaluation import describe_checkpoint, evaluate_run

    line = LINES[settings.checkpoint]
    # Printed first, because the evaluation may take long.
    print("\n".join([printable(folder, MOST_PRINTED), *describe_checkpoint(folder, line)]), flush=True)
    result = evaluate_run(folder, settings.episodes or None, settings.greedy, settings.device, settings.seed, line, settings.trust)
    table = Table("measure", "value", "standard error")
    for name, measured in result.items():
        if not name.endswith("_stderr"):
            error = result.get(f"{name}_stderr")
            value = f"{measured:,}" if isinstance(measured, int) else f"{measured:,.3f}"
            table.add_row(name, value, "" if error is None else f"{error:,.3f}")
    table_console().print(table)
    return DONE


@dataclass
class _ExportSettings:
    """The settings of `warprun export`."""

    checkpoint: str = "last"
    overwrite: bool = False
    output_root: str = "outputs"
    trust: bool = False
    """Run the code of a run folder that this user did not make."""


def export(arguments: Sequence[str]) -> int:
    """Write the policy of a run to a file, and print the names in the file. Raises UserError."""
    settings = _ExportSettings()
    names = read_settings("export", settings, arguments)
    if len(names) != 2:
        raise UserError("export takes a run and a file, such as `warprun export latest policy.onnx`")
    run, file = names[0], Path(names[1])
    if file.is_dir() and run not in ("", "latest") and not Path(run).is_dir():
        raise UserError(f"export takes the run, then the file: write `{program()} export {typed(file)} {typed(Path(run))}`")
    from warprun.policies import export as exporting
    from warprun.policies.loading import load

    exporting.check_file(file, settings.overwrite)
    policy = load(_folder(run, settings.output_root), settings.checkpoint, trust=settings.trust)  # type: ignore[arg-type]
    written = exporting.export(policy, file, settings.overwrite)
    print(f"{printable(policy.path, MOST_PRINTED)}, after {policy.env_steps:,} env_steps")
    print("\n".join([f"{printable(file, MOST_PRINTED)}: {', '.join(written)}", *exporting.pictures(policy)]))
    return DONE


def _folder(run: str, output_root: str) -> Path:
    """Return the folder of a run; "" and "latest" are the newest in `output_root`. Raises UserError."""
    return rundir.latest(Path(output_root)) if run in ("", "latest") else Path(run)


POLICIES = ("trained", "random")


@dataclass
class PlaySettings:
    """The settings of `warprun play`."""

    episodes: int = 1
    greedy: bool = True
    checkpoint: str = "last"
    policy: str = "trained"
    """trained: that of the run; random: uniform actions, in the environment of the run or of env=NAME."""
    record: str = ""
    """A file, or several as [a.csv,b.gif]."""
    every: int = 1
    """Steps from one frame of a film to the next."""
    fps: float = 25.0
    """Frames per second of a film."""
    device: str = "auto"
    seed: int = 0
    output_root: str = "outputs"
    trust: bool = False
    """Run the code of a run folder that this user did not make."""


def play(arguments: Sequence[str]) -> int:
    """Play episodes, record them and print their outcomes. Raises UserError."""
    overrides = [argument for argument in arguments if is_setting(argument) and argument.partition("=")[0].partition(".")[0] == "env"]
    settings = PlaySettings()
    names = read_settings("play", settings, [argument for argument in arguments if argument not in overrides])
    run = one_run("play", names)
    check_settings(settings)
    check_one_of("policy", settings.policy, POLICIES)
    if not 0.01 <= settings.fps <= 1000:
        raise UserError(f"fps={settings.fps:g} must be from 0.01 to 1000")
    if settings.policy == "random" and not settings.greedy:
        raise UserError("greedy=false is for a trained policy; leave it out with policy=random")
    if settings.policy == "random" and settings.checkpoint != PlaySettings.checkpoint:
        raise UserError(f"checkpoint={settings.checkpoint} is for a trained policy; leave it out with policy=random")
    if overrides and run:
        raise UserError(f"{overrides[0]}: the environment is that of the run; leave {run} or {overrides[0]} out")
    if overrides and settings.policy != "random":
        raise UserError(f"{overrides[0]} has no trained policy: name a run, or add policy=random")
    listed = settings.record.strip().removeprefix("[").removesuffix("]")
    records = record_paths([part.strip() for part in listed.split(",")] if listed.strip() else [])
    played, order = _untrained(overrides, settings, records) if overrides else _of_run(run, settings, records)
    _print(played, order)
    return DONE


def _order(settings: PlaySettings, records: tuple[Path, ...]) -> Order:
    from warprun.playing.play import Order

    return Order(settings.episodes, settings.seed, settings.greedy, records, settings.every, settings.fps)


def _untrained(overrides: Sequence[str], settings: PlaySettings, records: tuple[Path, ...]) -> tuple[list[Played], Order]:
    """Play an environment without a run."""
    from warprun.config.compose import compose
    from warprun.config.memory_estimate import check_evaluation_memory
    from warprun.config.schema import load_environment

    config = compose(with_convolutions([*overrides, "tuned=none", f"device={settings.device}"]))
    environment, module = load_environment(config.env, config.concurrency.parallel)
    check_evaluation_memory(config, environment, settings.episodes)
    prepare(config.device)
    from warprun.playing.play import play
    from warprun.runs.build import set_up

    order = _order(settings, records)
    return list(play(set_up(config), module, None, order)), order


def _of_run(run: str, settings: PlaySettings, records: tuple[Path, ...]) -> tuple[list[Played], Order]:
    folder = _folder(run, settings.output_root)
    rundir.read_config(folder)  # raises UserError if it is no run folder
    prepare(settings.device)
    from warprun.playing.play import play
    from warprun.runs.build import set_up
    from warprun.runs.evaluation import describe_checkpoint
    from warprun.runs.opening import load_checkpoint, open_run, trained_agent

    line, order = LINES[settings.checkpoint], _order(settings, records)
    trained = settings.policy == "trained"
    print("\n".join([printable(folder, MOST_PRINTED), *(describe_checkpoint(folder, line) if trained else [])]), flush=True)
    opened = open_run(folder, settings.device, settings.trust, settings.episodes)
    saved = load_checkpoint(opened, line) if trained else None
    setup = set_up(opened.config)
    return list(play(setup, opened.module, trained_agent(setup, saved) if saved else None, order)), order


def _print(played: Sequence[Played], order: Order) -> None:
    """Print a row for every episode, their means if there are several, and the files."""
    groups = list(played[0].returns)
    names = ["return"] if len(groups) == 1 else [f"{group} return" for group in groups]
    table = Table("episode", *names, "steps", "end")
    for number, episode in enumerate(played):
        table.add_row(str(number), *(f"{episode.returns[group]:,.3f}" for group in groups), f"{episode.steps:,}", episode.end)
    if len(played) > 1:
        means = [f"{sum(episode.returns[group] for episode in played) / len(played):,.3f}" for group in groups]
        table.add_row("mean", *means, f"{sum(episode.steps for episode in played) / len(played):,.1f}", "")
    table_console().print(table)
    for path in order.records:
        print(f"{printable(path, MOST_PRINTED)}  {path.stat().st_size:,} bytes")


def report(arguments: Sequence[str]) -> int:
    """Report the runs that `arguments` name. Raises UserError."""
    from warprun.report import report as reporting

    settings = reporting.Asked()
    places = read_settings("report", settings, arguments)
    if not places:
        raise UserError("report needs run folders or folders of runs, such as `warprun report outputs`")
    check_one_of("returns", settings.returns, ("auto", "eval", "train"))
    if any(argument.startswith("threshold=") for argument in arguments) and not math.isfinite(settings.threshold):
        raise UserError(f"threshold={settings.threshold} must be a finite number")
    if any(argument.startswith("by=") for argument in arguments) and not reporting.names(settings.by):
        raise UserError("by= needs names of settings, such as by=agent,n_envs")
    page, _, mark = settings.into.rpartition(":")
    if settings.into and not (page and mark):
        raise UserError(f"into={settings.into}: it must be a page and a mark in it, such as into=results.md:returns")
    with uncollected():  # the records of thousands of runs are no garbage
        reporting.report(tuple(map(Path, places)), settings)
    return DONE
