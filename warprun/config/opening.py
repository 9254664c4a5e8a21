"""Open the config of a run folder that somebody else may have made: its code runs only if the user trusts it.

Code of a run folder runs in three cases: the seal shows that a run of this user wrote it (`trust.is_own`), the user said `trust=true`, or
the user has the environment: a config file in ./conf, of an installed package or of warprun names its module, and for an environment file
its content is that of the run. No numba, no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from warprun.config import kept, registry, sources, trust
from warprun.config.schema import Config, EnvConfig, to_dict
from warprun.errors import UserError, printable

ADVICE = "read it, then add trust=true"


def open_config(folder: Path, config: Config, trusted: bool) -> Config:
    """Return `config`, that of the run in `folder`, ready to be checked: with the copy of the environment as `env.module`, if there is one.

    `trusted`: the user trusts the code in the folder. No code of the folder runs here, and checks of the returned config may run it. Raises
    UserError if the user has to decide.
    """
    for name in _networks(to_dict(config)["agent"]):
        if ":" in name and not trusted and not trust.is_own(folder):
            raise UserError(f"{printable(folder)} is not a run of yours, and its agent.network.name={printable(name)} is code: {ADVICE}")
    return replace(config, run_dir=None, env=replace(config.env, module=_module(folder, config.env, trusted)))


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
    if known and not is_file:
        return copy if own else env.module
    if trusted or trust.is_own(folder):
        return copy if own else env.module
    if known and own and Path(env.module).is_file() and sources.read_file(Path(env.module)).hashes() == own.hashes():
        return env.module
    code = str(own.source_path(own.entry)) if own and own.place is not None else env.module
    raise UserError(f"{printable(folder)} is not a run of yours (no valid seal), and it would run the code in {printable(code)}: {ADVICE}")


def check_size(config: Config, checkpoint_bytes: int) -> None:
    """Raise UserError if the networks have more float32 weights than fit into the checkpoint, before memory is allocated for them."""
    for hidden in _hidden(to_dict(config)["agent"]):
        weights = sum(hidden) + sum(before * after for before, after in pairwise(hidden))
        if 4 * weights > checkpoint_bytes:
            raise UserError(f"the checkpoint is of other networks: its {checkpoint_bytes:,} bytes cannot hold {printable(hidden)}")


def _hidden(agent: object) -> Iterator[list[int]]:
    """Yield the hidden layers of an agent and of its groups."""
    if isinstance(agent, Mapping):
        for key, value in agent.items():
            if key == "hidden" and isinstance(value, list):
                yield value
            yield from _hidden(value)


def _networks(agent: object) -> Iterator[str]:
    """Yield the names of the networks of an agent and of its groups."""
    if isinstance(agent, Mapping):
        for key, value in agent.items():
            if key == "network" and isinstance(value, Mapping):
                yield str(value.get("name", ""))
            yield from _networks(value)
