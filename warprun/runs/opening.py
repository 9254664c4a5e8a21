"""Open a run folder that somebody else may have made: its code runs only if the user trusts it.

Code of a run folder runs in three cases: the seal shows that a run of this user wrote it (`sealing.is_own`), the user said `trust=true`, or
the user has the environment: a config file in ./conf, of an installed package or of warprun names its module, and for an environment file
its content is that of the run. Modules to import (`env.register`) and arguments of `gymnasium.make` (`env.kwargs`, which can name code) are
code of the folder too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from warprun.config import environment_copy, registry
from warprun.config.checks import check_settings
from warprun.config.external import BY_ID
from warprun.config.memory_estimate import check_evaluation_memory
from warprun.config.own_files import read_yaml
from warprun.config.schema import Config, EnvConfig, from_dict, load_environment
from warprun.errors import UserError, printable
from warprun.run_folder import ENVIRONMENT, MANIFEST
from warprun.runs import rundir
from warprun.runs.sealing import ADVICE, is_own, open_networks
from warprun.user_code import read_file

if TYPE_CHECKING:
    from warprun.learning.interfaces import Agent
    from warprun.runs.build import Setup
    from warprun.runs.checkpoint import Loaded


@dataclass(frozen=True)
class Opened:
    """A run whose code may run."""

    folder: Path
    config: Config
    module: ModuleType
    """The module that defines the environment."""


def open_run(folder: Path, device: str, trusted: bool, episodes: int | None) -> Opened:
    """Open a run to play `episodes` on a device; None: as many as in its final evaluation. Nothing is built.

    `trusted`: code of the run folder may run even if no run of this user put it there (`open_config`). Prints a line for each
    difference between the environment of the run and that of now. Raises UserError.
    """
    config = open_config(folder, replace(from_dict(rundir.read_config(folder)), device=device), trusted)
    # Directly after the check of the folder: an evaluation takes minutes, in which the folder could change.
    _, module = load_environment(config.env, config.concurrency.parallel)
    environment = check_settings(config)
    check_evaluation_memory(config, environment, episodes or config.eval.episodes_at_end)
    own = environment_copy.find(config.env.module)
    if own:
        for difference in own.differences(config.env.options, config.env.time_limit):
            print(difference)
    return Opened(folder, config, module)


def load_checkpoint(run: Opened, line: str) -> Loaded:
    """Return the newest checkpoint (`checkpoint.LAST`) or the best one (`BEST`) of a run. Raises UserError."""
    from warprun.runs import checkpoint  # imports torch, which is not needed to refuse a folder

    saved = checkpoint.load(run.folder, line)
    checkpoint.check_size(run.config.agent, saved.path.stat().st_size)
    return saved


def trained_agent(setup: Setup, saved: Loaded) -> Agent:
    """Return an agent that acts as the one in a checkpoint. Raises UserError."""
    from warprun.runs.build import make_agent  # imports torch and Numba
    from warprun.state import restore

    agent = make_agent(setup)
    own_state = {f"agent/{name}": tensor for name, tensor in agent.policy_state().items()}
    restore(own_state, {name: saved.tensors[name] for name in own_state if name in saved.tensors})
    return agent


def open_config(folder: Path, config: Config, trusted: bool) -> Config:
    """Return `config`, that of the run in `folder`, ready to be checked: with the copies of the environment and of networks of the user.

    `trusted`: the user trusts the code in the folder. No code of the folder runs here, and checks of the returned config may run it. Raises
    UserError if the user has to decide.
    """
    agent = open_networks(folder, config.agent, trusted)
    return replace(config, run_dir=None, agent=agent, env=replace(config.env, module=_module(folder, config.env, trusted)))


def _module(folder: Path, env: EnvConfig, trusted: bool) -> str:
    """Return the module that the environment of a run is loaded from. Raises UserError if the user has to decide."""
    copy = str(folder / ENVIRONMENT)
    own = environment_copy.find(copy)
    if own and own.module != env.module:
        where = f"{printable(folder)}: config.yaml and {ENVIRONMENT}/{MANIFEST}"
        raise UserError(f"{where} name two environments, {printable(env.module)} and {printable(own.module)}")
    is_file = env.module.endswith(".py")
    if not is_file and not registry.is_dotted(env.module):
        raise UserError(f"env.module={printable(env.module)} in {printable(folder)} is neither a dotted name nor a .py file")
    if own and is_file != own.is_file:
        raise UserError(f"{printable(folder)}: {ENVIRONMENT}/{MANIFEST} is damaged: `place` does not fit {printable(env.module)}")
    known = registry.is_of_warprun(env.module) or env.module in environment_modules(folder)
    given = _arguments(env)
    if (known and not is_file and not given) or trusted or is_own(folder):
        return copy if own else env.module
    if given:
        raise UserError(f"{printable(folder)} is not a run of yours (no valid seal), and its {printable(given)} can run any code: {ADVICE}")
    if known and own and Path(env.module).is_file() and read_file(Path(env.module)).hashes() == own.copy.hashes():
        return env.module
    code = str(own.copy.folder / own.copy.files[own.copy.entry]["file"]) if own and own.is_file else env.module
    raise UserError(f"{printable(folder)} is not a run of yours (no valid seal), and it would run the code in {printable(code)}: {ADVICE}")


def environment_modules(outside: Path) -> set[str]:
    """Return the modules that config files of environments name: those of warprun, of installed packages, and of folders of the user.

    The latter do not count if they, or the working folder, are in the folder `outside`.
    """
    folders, here, there = registry.folders_of(*registry.conf_packages()), Path.cwd().resolve(), outside.resolve()
    if there not in (here, *here.parents):
        folders += [folder for folder in registry.own_folders() if there not in (folder.resolve(), *folder.resolve().parents)]
    found = set()
    for path in (path for folder in folders for path in (folder / "env").glob("*.yaml")):
        try:
            config = OmegaConf.to_container(read_yaml(path, path.name, "env")[1])
        except UserError:
            continue  # it says so when it is used
        if isinstance(config, dict) and isinstance(config.get("module"), str):
            found.add(config["module"])
    return found


def _arguments(env: EnvConfig) -> str:
    """Return the setting of an environment by id that can run any code; empty if there is none."""
    if env.register:
        return f"env.register={list(env.register)}"
    return f"env.kwargs={dict(env.kwargs)}" if env.module in BY_ID and env.kwargs else ""
