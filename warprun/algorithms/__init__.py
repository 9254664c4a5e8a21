"""The agents by name. Light to import: an agent's module, with torch, is imported where its class is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from warprun.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from warprun.learning.interfaces import AgentClass

AGENTS = {
    "a2c": "warprun.algorithms.a2c:A2C",
    "ppo": "warprun.algorithms.ppo:PPO",
    "dqn": "warprun.algorithms.dqn:DQN",
    "ddpg": "warprun.algorithms.ddpg:DDPG",
    "td3": "warprun.algorithms.td3:TD3",
}
"""Name -> "module:Class". Settings, checks and requirements stand in the class, see `learning.interfaces.AgentClass`."""


def agent_class(name: str) -> AgentClass[Any]:
    """Return the class of the agent called `name`: one of AGENTS or an entry point of the group `warprun.agents`. Raises UserError."""
    if name in AGENTS:
        module, _, attribute = AGENTS[name].partition(":")
        return getattr(import_module(module), attribute)
    installed = _installed()
    if name not in installed:
        raise UserError(f"there is no agent {name!r}; {did_you_mean(name, agent_names())}")
    try:
        return installed[name].load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"agent {name!r} ({installed[name].value}) cannot be imported: {error}") from error


def config_class(name: str) -> type:
    """Return the dataclass of the settings of the agent called `name`."""
    return agent_class(name).Config


def agent_names() -> tuple[str, ...]:
    """Return the names of all agents, the installed ones included."""
    return (*AGENTS, *sorted(_installed()))


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="warprun.agents")}
