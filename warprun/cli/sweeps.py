"""`warprun -m`, `tune` and `status`: many runs from one command, and the table of their results. No torch."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from warprun.cli.job import train_job
from warprun.cli.process import DONE, FAILED
from warprun.config.cadence import AUTO as AUTOMATIC
from warprun.config.checks import check_place
from warprun.config.compositions import Compositions
from warprun.config.memory_estimate import most_on_gpu
from warprun.config.overrides import AUTO, MAX_RUNS, MAX_RUNS_EVER, refuse_plus, runs, searched
from warprun.config.schema import Config, is_open
from warprun.errors import UserError, counted, nearest, one_line, printable, program, shown, similar, typed
from warprun.processes import usable_cores
from warprun.run_folder import JOBS
from warprun.runs.records.terminal import table_console
from warprun.runs.rundir import Held
from warprun.sweeps import events, local, plan, view
from warprun.sweeps import launcher as launchers
from warprun.sweeps.launch import LaunchConfig, LocalConfig, SlurmConfig, taken_launch
from warprun.sweeps.launcher import Launcher, Running
from warprun.sweeps.local import Pool
from warprun.sweeps.plan import Job, Plan
from warprun.sweeps.spaces import default_space
from warprun.sweeps.table import Board

if TYPE_CHECKING:
    from warprun.sweeps.study import Space

SETTLE_S = 15.0
"""Longest wait for the jobs of a launcher that was killed, which save their checkpoints and end."""


def sweep(overrides: Sequence[str]) -> int:
    """Check every run that `overrides` describe, then train those that are not done; return the exit code. Raises UserError."""
    launch, given, configs, found = _planned(overrides, _prepare)
    launcher = None if isinstance(launch.launcher, LocalConfig) else launchers.made(launch.launcher, found, launch.trust)
    with held(found, configs[0]) as lock:
        board = Board.of(found)
        if launcher is None or not launcher.outlasts:
            _settle(board)
        todo = [job for job, state in zip(found.jobs, board.states, strict=True) if not state.is_done and state.state != "running"]
        waits = launcher is None or launcher.size is not None
        said = (f"{printable(found.folder, 1000)}: {board.title()}", events.note(found, waits))
        print("\n".join(filter(None, said)), flush=True)
        if not todo:
            if waits:
                return finish(board)
            print("nothing is left to do")
            return DONE
        _say_changed(board)
        if launcher is None:
            launcher = _pool(launch, given, configs, found, todo, len(todo))
        else:
            launchers.require_ended(found, launch.trust)
        try:
            return run_here(board, todo, launcher) if launcher.size else _submit(found, todo, launcher)
        except UserError:
            if not (found.folder / JOBS).exists() and launchers.submitted(found.folder) is None:
                plan.discard(lock, Path(configs[0].output_root))
            raise


def _pool(launch: LaunchConfig, given: Sequence[str], configs: Sequence[Config], found: Plan, todo: Sequence[Job], together: int) -> Pool:
    """Return the launcher `local` of a sweep; up to `together` jobs may train together on GPUs."""
    devices = {config.device for config in configs} if given else _devices(found)
    on_cpu = min(usable_cores(), len(todo)) if launch.population else 1
    train = partial(train_job, trusted=launch.trust or not found.seal)
    needs = partial(most_on_gpu, configs) if given else partial(_most_on_gpu, found, todo)
    return Pool(found.folder, launch.launcher.workers, devices, train, needs, on_cpu, together)


def show_first(overrides: Sequence[str], flags: Sequence[str]) -> int:
    """Print what `flags`, options of Hydra, ask for of the first job; return the exit code. Raises UserError."""
    from warprun.cli.show import show

    *_, found = _planned(overrides, lambda launch, first: None)
    print(f"# {found.jobs[0].run.name}, the first of {counted(len(found.jobs), 'job')}", flush=True)
    return show(found.jobs[0].overrides, flags)


def _prepare(launch: LaunchConfig, first: Config) -> None:
    """Let imports begin while the other jobs are checked. A mistake is mostly in all jobs, so its command has ended before."""
    if isinstance(launch.launcher, LocalConfig) and first.device != "cudasim":
        local.prepare()


Planned = tuple[LaunchConfig, list[str], list[Config], Plan]
"""The settings of the launch, the overrides of the runs, their configs and their plan."""


def _planned(overrides: Sequence[str], on_first: Callable[[LaunchConfig, Config], None]) -> Planned:
    """Check all runs that `overrides` describe and plan them; `on_first` is called when the first is checked. Raises UserError."""
    launch, given = taken_launch(overrides)
    refuse(given)
    if not given and launch.population is None and launch.sweep_dir and not plan.is_sweep(Path(launch.sweep_dir)):
        raise UserError(
            f"sweep_dir={launch.sweep_dir}: there is no sweep to continue; name one, or add what to train, such as env=cartpole seed=0,1"
        )
    if launch.population is not None:
        if any(override.startswith("seed=") for override in given):
            raise UserError(f"population={launch.population} gives the members their seeds: leave out seed=")
        given = [*given, f"seed=range(0,{launch.population})"]
    jobs = runs(given, MAX_RUNS_EVER if launch.sweep.yes else MAX_RUNS)
    compositions = Compositions()
    first = _checked(jobs[0], compositions)
    refuse_plus(given)
    on_first(launch, first)
    configs = [first, *(_checked(job, compositions) for job in jobs[1:])]
    return launch, given, configs, plan.planned(sweep_folder(launch, configs[0]), jobs, launch.trust)


def _settle(board: Board) -> None:
    """Wait for jobs that run without a launcher here: theirs may just have been killed."""
    end = time.monotonic() + SETTLE_S
    while "running" in board.counts and time.monotonic() < end:
        time.sleep(0.1)
        board.refresh()


def _say_changed(board: Board) -> None:
    """Print which files of the user have changed since jobs began: these and others are not comparable."""
    for file, number in plan.outdated(board.plan.jobs).items():
        changed = f"{printable(file)} has changed since the start of {counted(number, 'job')}"
        print(f"{changed}: the old version stays in use there, and other jobs get the new one", flush=True)


def _devices(found: Plan) -> set[str]:
    """Return the devices that the jobs of a plan name; those of others may be any."""
    named = [[override for override in job.overrides if override.startswith("device=")] for job in found.jobs]
    return {each[-1].partition("=")[2] if each else "auto" for each in named}


def _most_on_gpu(found: Plan, todo: Sequence[Job]) -> int:
    """Return what `most_on_gpu` does of jobs of a plan; one whose settings do not work any more fails when it begins."""
    compositions, configs = Compositions(), []
    for job in todo:
        with suppress(UserError), chdir(found.working_folder):
            configs.append(_checked(job.overrides, compositions))
    return most_on_gpu(configs)


def run_here(board: Board, todo: Sequence[Job], launcher: Launcher) -> int:
    """Train jobs and wait for them; print their table and what to do next; return the exit code."""
    print(launcher.describe(), flush=True)
    try:
        view.run(board, todo, Running(launcher))
    except KeyboardInterrupt:
        with suppress(OSError):  # Ctrl-C may have ended the reader, too
            close(board)
            print(f"continue: {program()} -m sweep_dir={typed(board.plan.folder)}", flush=True)
        raise
    finally:
        launcher.close()
    return finish(board)


def finish(board: Board) -> int:
    """Print the table of a sweep and what to do next; return the exit code."""
    close(board)
    elsewhere = board.counts.get("running", 0)
    if elsewhere:
        where = f"{program()} status {typed(board.plan.folder)}"
        print(f"{elsewhere} of {len(board.states)} jobs run in other processes: {where}", flush=True)
    failed = board.counts.get("failed", 0)
    if failed:
        print(f"{failed} of {len(board.states)} jobs failed; log.txt and traceback.txt in their folders say why", file=sys.stderr)
    # A job that could not write its end, because the disk is full, or that got a signal of its own.
    stopped = len(board.states) - elsewhere - failed - sum(state.is_done for state in board.states)
    if stopped:
        again = f"the same command with sweep_dir={typed(board.plan.folder)} continues them"
        print(f"{stopped} of {len(board.states)} jobs did not come to their end; {again}", file=sys.stderr)
    return FAILED if failed or stopped else DONE


def close(board: Board) -> None:
    """Print the table of all jobs and the next commands. As for the records of a run, a closed pipe or a full disk is not a failure."""
    board.refresh()
    with suppress(OSError):
        console = table_console()
        console.print(board.table())
        best = max((job for job in board.plan.jobs if board.states[job.number].is_done), key=lambda job: _return(board, job), default=None)
        if best is not None:
            steps = [f"report {typed(board.plan.folder)}", f"eval {typed(best.run)}"]
            print("\n  ".join(["next:", *(f"{program()} {step}" for step in steps)]), flush=True)


def _return(board: Board, job: Job) -> float:
    returned = board.states[job.number].returned
    return float("-inf") if returned is None or returned != returned else returned


def _submit(found: Plan, todo: Sequence[Job], launcher: Launcher) -> int:
    """Submit jobs, print what follows, and return the exit code. Raises UserError if none can be submitted."""
    ids = launcher.submit(todo)
    launchers.note(launcher, {job.number: id for job, id in zip(todo, ids, strict=False)})
    named = " to ".join(dict.fromkeys((ids[0], ids[-1])))
    print(f"submitted {counted(len(ids), 'job')} ({named})", flush=True)
    print(*(f"  {program()} {verb} {typed(found.folder)}" for verb in ("status", "cancel")), sep="\n", flush=True)
    if len(ids) < len(todo):
        print(f"the queue takes no more: {len(todo) - len(ids):,} jobs are left for the same command later", file=sys.stderr)
    return DONE if len(ids) == len(todo) else FAILED


def refuse(given: Sequence[str]) -> None:
    """Raise UserError for settings of single runs, which a sweep gives each job itself."""
    for override in given:
        key = override.partition("=")[0]
        if key == "resume":
            raise UserError("resume= continues one run; `warprun -m sweep_dir=FOLDER` continues a sweep")
        if key == "run_dir":
            raise UserError("run_dir is the folder of one run: the runs of a sweep lie in sweep_dir=FOLDER")


def checked_runs(jobs: Sequence[Sequence[str]]) -> list[Config]:
    """Return the configs of all jobs. Raises UserError for the first that cannot work."""
    compositions = Compositions()
    return [_checked(job, compositions) for job in jobs]


def _checked(job: Sequence[str], compositions: Compositions) -> Config:
    name = " ".join(job)
    try:
        config = compositions.compose(job)
        check_place(config)
        mode = config.concurrency
        if mode.wanted is None:
            raise UserError(f"concurrency={mode.name} in a sweep needs concurrency.processes=N, because each job starts its own")
    except UserError as error:
        raise UserError(f"{name}: {error}" if name else str(error)) from error
    return config


def sweep_folder(launch: LaunchConfig, first: Config) -> Path:
    """Return the folder that the user named, or a new one. Raises UserError."""
    name = first.name or f"{first.env.label}_{first.agent.name}"
    folder = Path(launch.sweep_dir).absolute() if launch.sweep_dir else plan.new_folder(Path(first.output_root).absolute(), name)
    if "$" in str(folder) or not str(folder).isprintable():
        raise UserError(f"sweep_dir: a path cannot have $ or control characters: {shown(str(folder))}")
    return Path(os.path.relpath(folder)) if folder.is_relative_to(Path.cwd()) else folder


@contextmanager
def held(found: Plan, first: Config) -> Iterator[Held]:
    """Hold the folder of a plan and yield its lock, so that no other command starts jobs in it; `first`: the config of its first job."""
    lock = plan.claimed(found, Path(first.output_root))
    try:
        yield lock
    finally:
        lock.release()


SHORT = ("trials", "minutes", "pruner", "sampler", "members")
"""Settings that need no `tune.` before them."""


def tune(arguments: Sequence[str]) -> int:
    """Train trials to find the best settings, and print these; return FAILED if no trial has finished.

    Raises UserError.
    """
    for key in (argument.partition("=")[0] for argument in arguments):
        known = "." in key or key in (*SHORT, *Config.__dataclass_fields__, *LaunchConfig.__dataclass_fields__)
        if not known and similar(key, SHORT):
            raise UserError(f"unknown key {shown(key)}{nearest(key, SHORT)}")
    overrides = [f"tune.{argument}" if argument.partition("=")[0] in SHORT else argument for argument in arguments]
    launch, given = taken_launch(overrides)
    refuse(given)
    if isinstance(launch.launcher, SlurmConfig):
        raise UserError(f"launcher={launch.launcher.name}: tune starts its trials on this machine; start it within a job of the cluster")
    try:
        from warprun.sweeps import study as studies
        from warprun.sweeps.pbt import Population
        from warprun.sweeps.study import Search
    except ImportError as error:
        raise UserError(f"tune needs Optuna ({one_line(error)}): pip install 'warprun[tune]'") from None
    settings = launch.tune
    space = _space(given, networks=settings.sampler != "pbt")  # a member goes on with the networks of another one
    configs = checked_runs(space.corners())
    if any(config.eval.every == AUTOMATIC for config in configs) and settings.sampler != "pbt":
        space = space._replace(fixed=[*space.fixed, studies.EVERY_TENTH])
    in_rounds = {"tune.sampler": "pbt", "tune.members": str(settings.members)} if settings.sampler == "pbt" else {}
    found = plan.studied(sweep_folder(launch, configs[0]), space.text | in_rounds, launch.trust)
    launcher = None if isinstance(launch.launcher, LocalConfig) else launchers.made(launch.launcher, found, launch.trust)
    if launcher and not launcher.size:
        raise UserError(f"launcher={launch.launcher.name}: tune waits for its trials; say how many at a time, launcher.workers=N")
    with held(found, configs[0]):
        study: Search
        if in_rounds:
            study = Population(found, space, settings, configs[0].total_steps)
            work = f"{settings.members} members, {study.rounds} rounds"
        else:
            study = studies.Study(found, space, settings, configs[0].eval.group)
            work = f"{settings.trials} trials" + (f", {settings.minutes:g} minutes" if settings.minutes else "")
        board = Board.of(found)
        if launcher is None:
            # Trials are chosen by the results of others, and may be stopped alone; the members of a population are neither.
            launcher = _pool(launch, given, configs, found, [], settings.members if in_rounds else 1)
        else:
            launchers.require_ended(found, launch.trust)
        print(f"{printable(found.folder, 1000)}: {work}, {launcher.describe()}", flush=True)
        _say_changed(board)
        try:
            studies.run(study, board, Running(launcher), settings.minutes or math.inf)
        except KeyboardInterrupt:
            with suppress(OSError):  # Ctrl-C may have ended the reader, too
                print(f"continue: the same command with sweep_dir={typed(found.folder)}", flush=True)
            raise
        finally:
            launcher.close()
            board.refresh()
            with suppress(OSError):
                table_console().print(board.table())
                following = _next(study.best, studies.BEST)
                print("\n".join([*studies.closing(study), *following]), flush=True)
    return DONE if study.best else FAILED


def _space(given: Sequence[str], networks: bool) -> Space:
    """Return what `given` searches; if that is nothing, the space of its agent, which begins with its own values. Raises UserError.

    `networks`: whether sizes of networks are part of that.
    """
    from warprun.sweeps.study import read_space

    if searched(given)[1]:
        return read_space(given)
    (config,) = checked_runs([given])
    if is_open(config) or config.concurrency.parallel.ranks_per_env > 1:
        unknown = AUTO if is_open(config) else "concurrency.ranks_per_env"
        example = "name what to search, such as 'agent.gamma=choice(0.9,0.99)'"
        raise UserError(f"{unknown}: the settings that follow from the run are not known yet; {example}")
    own = default_space(config, given, networks)
    print("searching", *own, flush=True)
    return read_space([*given, *own]).beginning_with(config)


def _next(best: plan.Job | None, settings: str) -> list[str]:
    if best is None:
        return []
    file = typed(best.run.parent / settings)
    return [
        "next:",
        f"  {program()} eval {typed(best.run)}",
        f"  mkdir -p conf/experiment && cp {file} conf/experiment/best.yaml && {program()} -m experiment=best 'seed=range(0,8)'",
    ]
