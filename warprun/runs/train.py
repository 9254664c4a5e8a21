"""Train a run: make its folder or find it, build it, drive it, and take it back if it does not begin."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from warprun.config import environment_copy
from warprun.config.batched import BatchedEnvironment
from warprun.config.schema import Config, is_open, to_dict
from warprun.errors import RunHasEndedError, UserError, program, typed
from warprun.files import all_to_disk, atomic, remove_empty
from warprun.run_folder import CONFIG, SET_UP, keep_networks
from warprun.runs import checkpoint, position, rundir, signals
from warprun.runs.crew import Crew
from warprun.runs.measured import Measured
from warprun.runs.result import Result
from warprun.runs.run import Run
from warprun.runs.sealing import network_modules, seal
from warprun.simulation.external.recipe import ExternalEnvironment


def start(run: Run, versions: Mapping[str, object]) -> None:
    """Write the files of a new run; `versions` are those of `rundir.versions`. Raises UserError and OSError."""
    env, environment = run.config.env, run.setup.environment
    if isinstance(environment, ExternalEnvironment | BatchedEnvironment) and environment.note:
        run.records.message(environment.note)
    rundir.write_versions(run.folder, versions)
    environment_copy.keep(run.folder, env.module, env.options, env.time_limit, environment, run.setup.tables)
    keep_networks(run.folder, list(network_modules(to_dict(run.config)["agent"])))
    _write_config(run, run.config)  # last: a folder with a config.yaml is a run that can be resumed, after a power failure, too


def restore(run: Run, stored: Config, changed: Sequence[str]) -> None:
    """Continue a run where its checkpoint left off; see `resume`. Raises UserError, and then nothing has changed."""
    if run.saved is not None:
        _restore_parts(run, run.saved, changed)
    run.measured.history = run.records.cut_back()
    _write_config(run, stored)
    run.status.resume(run.env_steps, changed)
    environment = run.setup.environment
    if isinstance(environment, ExternalEnvironment | BatchedEnvironment) and not environment.resumes:
        run.records.message(f"{environment.title} cannot be continued in the middle of an episode: all environments begin new ones")
    run.records.message(f"continues after {run.env_steps:,} env_steps{''.join(f', {setting}' for setting in changed)}")


def _restore_parts(run: Run, saved: checkpoint.Loaded, changed: Sequence[str]) -> None:
    try:
        note = run.crew.restore(saved)
        run.evaluations.restore(saved.tensors)
    except UserError as error:
        why = f"; changed: {', '.join(changed)}" if changed else ""
        raise UserError(f"{saved.path} does not fit this run: {error}{why}") from None
    if run.env_steps != saved.env_steps:
        raise UserError(
            f"{saved.path} has {saved.env_steps:,} env_steps, and the simulator {run.env_steps:,} after it was restored:"
            " its state() must contain `steps`"
        )
    # Checkpoints of 1.0.0 lack the group: it was this one unless the setting has changed.
    unknown = None if any(setting.startswith("eval.group=") for setting in changed) else run.measured.group
    if saved.meta.get("group", unknown) != run.measured.group:
        run.measured.forget_best()
    checkpoint.discard_after(run.folder, run.env_steps, checkpoint.BEST)
    if note:
        run.records.message(note)


def _write_config(run: Run, config: Config) -> None:
    """Write a config into the folder of a run, and seal the folder with it."""
    text = rundir.config_text(to_dict(config))
    unsealed = seal(run.folder, text)
    if unsealed:
        run.records.message(unsealed)
    with atomic(run.folder / CONFIG) as file:
        file.write(text)
        file.flush()
        all_to_disk(run.folder)


def train(config: Config, crew: Crew | None = None) -> Result:
    """Train one run with the processes of `crew`, which this one drives; None: one process.

    If a mistake of the user is found before training begins, UserError is raised and nothing is left behind: a folder that existed is
    empty again, one that was made for the run is removed. With `n_envs=auto` the number of environments is measured first. An
    interrupted run saves a checkpoint and raises KeyboardInterrupt.
    """
    if is_open(config):
        from warprun.runs.auto import choose  # imports the benchmark

        config = choose(config, print)
    with signals.flagged():
        with ExitStack() as setting_up:
            with signals.requests.undisturbed():
                held = _make_folder(config)
                setting_up.enter_context(signals.requests.last_words(lambda name: _take_back(held)))
            try:
                run = _begun(config, held, crew or Crew(), _start)
            except BaseException:
                _take_back(held)
                held.release()
                raise
        return _driven(run)


def _make_folder(config: Config) -> rundir.Held:
    """Return the folder of a new run, locked. Raises UserError."""
    if config.run_dir:
        return rundir.claim(Path(config.run_dir))
    return rundir.create(Path(config.output_root), config.name or f"{config.env.label}_{config.agent.name}")


def resume(config: Config, folder: Path, stored: Config, changed: Sequence[str], crew: Crew | None = None) -> Result:
    """Continue the run in `folder` from its newest checkpoint, or from its beginning if it has none; otherwise as `train`.

    `config` is what the run is built from, `stored` what its config.yaml says from now on, and `changed` the settings that differ from
    those before. The continued run takes the same steps as one that was never interrupted. Raises UserError if the run has reached its
    end, if another process trains in the folder, or if the saved state does not fit the settings; the run is then left as it was.
    """
    try:
        held = rundir.Held(folder)
    except OSError as error:
        raise UserError(f"cannot continue the run in {folder}: {error.strerror}") from None
    with signals.flagged():
        try:
            run = _begun(config, held, crew or Crew(), lambda run: restore(run, stored, changed))
        except BaseException as error:
            if isinstance(error, RunHasEndedError) and not changed:
                _write_end(folder)
            held.release()
            raise
        return _driven(run)


def _write_end(folder: Path) -> None:
    """Write the end of a run to its status if it was killed after its last checkpoint, before it did so; this process holds the folder."""
    former = rundir.read_status(folder)
    if former.get("state") == "running":
        group, at = former.get("group"), position.read(checkpoint.load(folder).meta.get("run", {}))
        returned = Measured(f"{group}/return" if group else "return", at.metrics, {}).returned
        end = {"state": "solved" if at.solved else "finished", "env_steps": at.env_steps, "wall_s": round(at.wall_s, 3)}
        with suppress(OSError):  # the next command tries again
            rundir.write_status(folder, former | end | returned)


def _start(run: Run) -> None:
    versions = rundir.versions()
    try:
        with signals.requests.undisturbed():
            start(run, versions)
    except OSError as error:
        raise UserError(f"cannot write {error.filename or run.folder}: {error.strerror}") from error


def _begun(config: Config, held: rundir.Held, crew: Crew, prepare: Callable[[Run], None]) -> Run:
    """Return a run that all its processes are ready for, after `prepare`; it is closed if one of them fails."""
    with ExitStack() as on_failure:
        with crew.together():
            run = Run(config, held, crew)
            on_failure.callback(run.close)
            prepare(run)
        run.meet()
        on_failure.pop_all()
    return run


def _driven(run: Run) -> Result:
    try:
        status = run.drive()
    finally:
        run.held.release()
    mode = run.config.concurrency
    if status == "interrupted" and getattr(mode, "processes", 1) is not None:  # others start the processes of a mode without this number
        with suppress(OSError):  # as for the records of a run
            print(f"continue: {program()} resume={typed(run.folder)}", flush=True)
    if signals.requests.number is not None:  # also if the run had just ended: a stop request also ends the remaining runs of a sweep
        signals.requeue(signals.requests.number)
        raise KeyboardInterrupt
    metrics, returns = run.measured.metrics, run.measured.returns
    return Result(
        run.folder,
        status,
        run.env_steps,
        run.records.wall_s,
        metrics.get(f"eval/{returns}"),
        metrics.get(f"eval/{returns}_stderr"),
        metrics.get("eval/best_return"),
        metrics.get(f"train/{returns}"),
        dict(metrics),
        run.records.summary,
    )


def _take_back(held: rundir.Held) -> None:
    """Remove what the set-up of a run wrote into its folder, then the folders that were made for it unless other files are in them."""
    for path in (held.folder / name for name in (*SET_UP, CONFIG)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    remove_empty(held.made)
