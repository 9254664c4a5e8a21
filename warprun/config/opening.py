"""Open the config of a run folder that somebody else may have made: its code runs only if the user trusts it.

Code of a run folder runs in three cases: the seal shows that a run of this user wrote it (`trust.is_own`), the user said `trust=true`, or
the user has the environment: a config file in ./conf, of an installed package or of warprun names its module, and for an environment file
its content is that of the run. Modules to import (`env.register`) and arguments of `gymnasium.make` (`env.kwargs`, which can name code) are
code of the folder too. No numba, no torch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from warprun import sources
from warprun.config import kept, registry, trust
from warprun.config.external import BY_ID
from warprun.config.networks import ADVICE, open_networks
from warprun.config.schema import Config, EnvConfig
from warprun.errors import UserError, printable


def open_config(folder: Path, config: Config, trusted: bool) -> Config:
    """Return `config`, that of the run in `folder`, ready to be checked: with the copies of the environment and of networks of the user.

    `trusted`: the user trusts the code in the folder. No code of the folder runs here, and checks of the returned config may run it. Raises
    UserError if the user has to decide.
    """
    agent = open_networks(folder, config.agent, trusted)
    return replace(config, run_dir=None, agent=agent, env=replace(config.env, module=_module(folder, config.env, trusted)))


def _module(folder: Path, env: EnvConfig, trusted: bool) -> str:
    """Return the module that the environment of a run is loaded from. Raises UserError if the user has to decide."""
    copy = str(folder / kept.FOLDER)
    own = kept.find(copy)
    if own and own.module != env.module:
        where = f"{printable(folder)}: config.yaml and {kept.FOLDER}/{kept.MANIFEST}"
        raise UserError(f"{where} name two environments, {printable(env.module)} and {printable(own.module)}")
    is_file = env.module.endswith(".py")
    if not is_file and not registry.is_dotted(env.module):
        raise UserError(f"env.module={printable(env.module)} in {printable(folder)} is neither a dotted name nor a .py file")
    if own and is_file != (own.place is not None):
        raise UserError(f"{printable(folder)}: {kept.FOLDER}/{kept.MANIFEST} is damaged: `place` does not fit {printable(env.module)}")
    known = env.module in registry.environment_modules(folder)
    given = _arguments(env)
    if (known and not is_file and not given) or trusted or trust.is_own(folder):
        return copy if own else env.module
    if given:
        raise UserError(f"{printable(folder)} is not a run of yours (no valid seal), and its {printable(given)} can run any code: {ADVICE}")
    if known and own and Path(env.module).is_file() and sources.read_file(Path(env.module)).hashes() == own.hashes():
        return env.module
    code = str(own.source_path(own.entry)) if own and own.place is not None else env.module
    raise UserError(f"{printable(folder)} is not a run of yours (no valid seal), and it would run the code in {printable(code)}: {ADVICE}")


def _arguments(env: EnvConfig) -> str:
    """Return the setting of an environment of Gymnasium that can run any code; empty if there is none."""
    if env.register:
        return f"env.register={list(env.register)}"
    return f"env.kwargs={dict(env.kwargs)}" if env.module == BY_ID and env.kwargs else ""
