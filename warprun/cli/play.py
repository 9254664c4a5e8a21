"""`warprun play`: episodes of a trained agent or of random actions. No torch before the arguments are checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warprun.cli.settings import check_choice, check_settings, is_setting, one_run, read_settings
from warprun.errors import MOST_PRINTED, UserError, printable
from warprun.playing.paths import record_paths
from warprun.run_folder import LINES

if TYPE_CHECKING:
    from warprun.playing.play import Order, Played

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


def play(arguments: Sequence[str]) -> None:
    """Play, record and print what came of it. Raises UserError."""
    overrides = [argument for argument in arguments if is_setting(argument) and argument.partition("=")[0].partition(".")[0] == "env"]
    settings = PlaySettings()
    names = read_settings("play", settings, [argument for argument in arguments if argument not in overrides])
    run = one_run("play", names)
    check_settings(settings)
    check_choice("policy", settings.policy, POLICIES)
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


def _order(settings: PlaySettings, records: tuple[Path, ...]) -> Order:
    from warprun.playing.play import Order

    return Order(settings.episodes, settings.seed, settings.greedy, records, settings.every, settings.fps)


def _untrained(overrides: Sequence[str], settings: PlaySettings, records: tuple[Path, ...]) -> tuple[list[Played], Order]:
    """Play an environment without a run."""
    from warprun.config.compose import compose
    from warprun.config.memory import check_evaluation_memory
    from warprun.config.schema import load_environment
    from warprun.kernels.driver import prepare

    config = compose([*overrides, "tuned=none", f"device={settings.device}"])
    environment, module = load_environment(config.env, config.concurrency.parallel)
    check_evaluation_memory(config, environment, settings.episodes)
    prepare(config.device)
    from warprun.playing.play import play
    from warprun.runs.build import set_up

    order = _order(settings, records)
    return list(play(set_up(config), module, None, order)), order


def _of_run(run: str, settings: PlaySettings, records: tuple[Path, ...]) -> tuple[list[Played], Order]:
    from warprun.runs import rundir

    folder = rundir.latest(Path(settings.output_root)) if run in ("", "latest") else Path(run)
    rundir.read_config(folder)  # raises UserError if it is no run folder
    from warprun.kernels.driver import prepare

    prepare(settings.device)
    from warprun.playing.play import play
    from warprun.runs.build import set_up
    from warprun.runs.evaluate import describe_checkpoint
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
    from rich.table import Table

    from warprun.runs.records.console import table_console

    groups = list(played[0].returns)
    names = ["return"] if len(groups) == 1 else [f"{group} return" for group in groups]
    table = Table("episode", *names, "steps", "end")
    for number, episode in enumerate(played):
        table.add_row(str(number), *(f"{episode.returns[group]:,.3f}" for group in groups), f"{episode.steps:,}", episode.end)
    if len(played) > 1:
        means = [f"{sum(episode.returns[group] for episode in played) / len(played):,.3f}" for group in groups]
        table.add_row("mean", *means, f"{sum(episode.steps for episode in played) / len(played):,.1f}", "")
    table_console(100).print(table)
    for path in order.records:
        print(f"{printable(path, MOST_PRINTED)}  {path.stat().st_size:,} bytes")
