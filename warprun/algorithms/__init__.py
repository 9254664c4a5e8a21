"""The agents by name. Light to import: an agent's module, with torch, is imported only when its class is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from warprun import user_code
from warprun.algorithms.settings import A2CConfig, DDPGConfig, DQNConfig, PPOConfig, SACConfig, TD3Config
from warprun.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from warprun.learning.interfaces import AgentClass
    from warprun.learning.settings.agent import AgentConfig


GROUP = "warprun.agents"
"""Entry points of agents that other packages have."""


class Shipped(NamedTuple):
    """An agent of warprun."""

    settings: type[AgentConfig]
    agent: str
    """"module:Class"."""


AGENTS = {
    "a2c": Shipped(A2CConfig, "warprun.algorithms.a2c:A2C"),
    "ppo": Shipped(PPOConfig, "warprun.algorithms.ppo:PPO"),
    "dqn": Shipped(DQNConfig, "warprun.algorithms.dqn:DQN"),
    "ddpg": Shipped(DDPGConfig, "warprun.algorithms.td3:DDPG"),
    "td3": Shipped(TD3Config, "warprun.algorithms.td3:TD3"),
    "sac": Shipped(SACConfig, "warprun.algorithms.sac:SAC"),
}
"""Agents by name. Checks and requirements are methods of the settings, see `learning.settings.agent.AgentConfig`."""


def agent_class(name: str) -> AgentClass[Any]:
    """Return the class of the agent called `name`: one of AGENTS or an entry point of the group `warprun.agents`. Raises UserError."""
    if name in AGENTS:
        module, _, attribute = AGENTS[name].agent.partition(":")
        return getattr(import_module(module), attribute)
    installed = _installed()
    if name not in installed:
        raise UserError(f"there is no agent {name!r}; {did_you_mean(name, agent_names())}")
    try:
        return installed[name].load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"agent {name!r} ({installed[name].value}) cannot be imported: {error}") from error


def config_class(name: str) -> type[AgentConfig]:
    """Return the dataclass of the settings of the agent called `name`. Imports an installed agent, not one of AGENTS."""
    return AGENTS[name].settings if name in AGENTS else agent_class(name).Config


def agent_names() -> tuple[str, ...]:
    """Return the names of all agents, the installed ones included."""
    return (*AGENTS, *sorted(_installed()))


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in user_code.installed(GROUP)}
