"""The networks that saved settings of an agent ask for: are they code that the user trusts, and do they fit the checkpoint.

Light, so that a policy can be loaded without the code that trains: no numba, no torch, no Hydra.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun import own_module
from warprun.algorithms import config_class
from warprun.config import trust
from warprun.errors import UserError, printable
from warprun.learning.settings import AgentConfig
from warprun.renamed import with_new_keys
from warprun.spec import Box, GroupSpec

A = TypeVar("A", bound=AgentConfig)
ADVICE = "read it, then add trust=true"
UNFIT = "the saved config does not fit this version of warprun"


def modules(agent: object, key: str = "agent") -> Iterator[tuple[str, str]]:
    """Yield (key, value) of each network of the user in the settings of an agent, as plain dicts, and of its groups."""
    if isinstance(agent, Mapping):
        for name, value in agent.items():
            if name == "network" and isinstance(value, Mapping) and value.get("module") is not None:
                yield f"{key}.network.module", str(value["module"])
            yield from modules(value, f"{key}.{name}")


def open_networks(folder: Path, agent: A, trusted: bool) -> A:
    """Return the settings of the agent of a run with the copies in its folder in place of the files of the user's networks.

    `trusted`: the user trusts the code in the folder. No code runs here, but a network that is built from the result may run it. Raises
    UserError if the user has to decide.
    """
    plain = OmegaConf.to_container(OmegaConf.structured(agent))
    for key, value in modules(plain):
        if not trusted and not trust.is_own(folder):
            raise UserError(f"{printable(folder)} is not a run of yours, and its {key}={printable(value)} is code: {ADVICE}")
    if not any(modules(plain)):
        return agent
    opened = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(type(agent)), _with_copies(folder, plain)))
    assert isinstance(opened, type(agent))
    return opened


def _with_copies(folder: Path, settings: object) -> object:
    if not isinstance(settings, Mapping):
        return settings
    found = {name: _with_copies(folder, value) for name, value in settings.items()}
    network = found.get("network")
    if isinstance(network, dict) and network.get("module") is not None:
        network["module"] = own_module.in_run(folder, "agent.network.module", str(network["module"]))
    return found


def agent_settings(saved: Mapping[str, object]) -> AgentConfig:
    """Return the settings of the agent in a saved config, also of an earlier version, without a check of their values. Raises UserError."""
    agent = saved.get("agent")
    name = agent.get("name") if isinstance(agent, Mapping) else None
    if not isinstance(name, str):
        raise UserError(f"{UNFIT}: it has no agent.name")
    try:
        schema = OmegaConf.structured(config_class(name)())
        settings = OmegaConf.to_object(OmegaConf.merge(schema, with_new_keys({"agent": agent}, {"agent": schema})["agent"]))
    except (OmegaConfBaseException, ValueError, TypeError, OverflowError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{UNFIT}: {printable(reason)}") from error
    return settings  # type: ignore[return-value]


def check_size(agent: AgentConfig, checkpoint_bytes: int) -> None:
    """Raise UserError if the networks have more float32 weights than fit into the checkpoint, before memory is allocated for them."""
    for hidden in _hidden(OmegaConf.to_container(OmegaConf.structured(agent))):
        _check_layers(0, hidden, checkpoint_bytes)


def check_size_of_group(own: AgentConfig, group: GroupSpec, checkpoint_bytes: int) -> None:
    """Raise UserError as `check_size` does, with the inputs and outputs of a group; `own`: the settings of the agent for it."""
    settings = OmegaConf.to_container(OmegaConf.structured(own))
    assert isinstance(settings, dict)
    outputs = group.action.components if isinstance(group.action, Box) else group.action.outputs
    for hidden in _hidden({name: value for name, value in settings.items() if name != "groups"}):
        _check_layers(group.observation.size, [*hidden, outputs], checkpoint_bytes)


def _check_layers(inputs: int, sizes: list[int], checkpoint_bytes: int) -> None:
    """Raise UserError if layers of these sizes have too many weights; `inputs` 0: how many they have is not known."""
    weights = sum(sizes) + sum(before * after for before, after in pairwise((inputs, *sizes)))
    if 4 * weights > checkpoint_bytes:
        of = f" of {inputs} inputs" if inputs else ""
        raise UserError(f"the checkpoint is of other networks: its {checkpoint_bytes:,} bytes cannot hold {printable(sizes)}{of}")


def _hidden(agent: object) -> Iterator[list[int]]:
    """Yield the hidden layers of an agent and of its groups; networks of the user have none that are known."""
    if isinstance(agent, Mapping):
        hidden, after = agent.get("hidden"), agent.get("after")
        if isinstance(hidden, list) and agent.get("module") is None:
            # Recurrent layers have several times as many weights as counted here.
            recurrent = [*agent.get("units", []), *(hidden if after is None else after)] if agent.get("type") in ("lstm", "gru") else []
            yield [*hidden, *recurrent]
        for value in agent.values():
            yield from _hidden(value)
