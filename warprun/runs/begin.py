"""The beginning of a run: the files of a new one, or the state of one that continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warprun.config import kept
from warprun.config.schema import Config, to_dict
from warprun.errors import UserError
from warprun.run_folder import keep_networks
from warprun.runs import checkpoint, rundir
from warprun.runs.run import Run
from warprun.runs.sealing import network_modules, seal
from warprun.simulation.external.recipe import ExternalEnvironment


def start(run: Run, versions: Mapping[str, object]) -> None:
    """Write the files of a new run; `versions` are those of `rundir.versions`. Raises UserError and OSError."""
    env = run.config.env
    rundir.write_versions(run.folder, versions)
    kept.keep(run.folder, env.module, env.options, env.time_limit, run.setup.environment, run.setup.tables)
    keep_networks(run.folder, list(network_modules(to_dict(run.config)["agent"])))
    _write_config(run, run.config)  # last: a folder with a config.yaml is a run that can be resumed


def restore(run: Run, stored: Config, changed: Sequence[str]) -> None:
    """Continue a run where its checkpoint left off; see `resume`. Raises UserError, and then nothing has changed."""
    if run.saved is not None:
        _restore_parts(run, run.saved, changed)
    run.measured.history = run.records.cut_back()
    _write_config(run, stored)
    run.status.resume(run.env_steps, changed)
    environment = run.setup.environment
    if isinstance(environment, ExternalEnvironment) and environment.state is None:
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
    checkpoint.discard_after(run.folder, run.env_steps, checkpoint.BEST)
    if note:
        run.records.message(note)


def _write_config(run: Run, config: Config) -> None:
    """Seal the folder of a run with a config, and write that."""
    unsealed = seal(run.folder, rundir.config_text(to_dict(config)))
    if unsealed:
        run.records.message(unsealed)
    rundir.write_config(run.folder, to_dict(config))
