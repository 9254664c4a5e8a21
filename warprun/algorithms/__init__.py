"""The agents by name. Light to import: no torch until a class is asked for."""

from __future__ import annotations

import difflib
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from warprun.errors import UserError
from warprun.learning.settings import A2CConfig, DDPGConfig, DQNConfig, PPOConfig, TD3Config

AGENTS = {
    "a2c": "warprun.algorithms.a2c:A2C",
    "ppo": "warprun.algorithms.ppo:PPO",
    "dqn": "warprun.algorithms.dqn:DQN",
    "ddpg": "warprun.algorithms.ddpg:DDPG",
    "td3": "warprun.algorithms.td3:TD3",
}
"""Name -> "module:Class"."""

CONFIGS: dict[str, type] = {"a2c": A2CConfig, "ppo": PPOConfig, "dqn": DQNConfig, "ddpg": DDPGConfig, "td3": TD3Config}
"""Name -> the dataclass of its settings."""


def agent_class(name: str) -> type[Any]:
    """Return the class of the agent called `name`: one of AGENTS or an entry point of the group `warprun.agents`."""
    if name in AGENTS:
        module, _, attribute = AGENTS[name].partition(":")
        return getattr(import_module(module), attribute)
    installed = _installed()
    if name not in installed:
        known = [*AGENTS, *installed]
        near = difflib.get_close_matches(name, known, 1)
        raise UserError(f"there is no agent {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"agents: {', '.join(known)}"))
    try:
        return installed[name].load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"agent {name!r} ({installed[name].value}) cannot be imported: {error}") from error


def config_class(name: str) -> type[Any]:
    """Return the dataclass of the settings of the agent called `name`; an installed agent's class has it as `Config`."""
    return CONFIGS[name] if name in CONFIGS else agent_class(name).Config


def agent_names() -> tuple[str, ...]:
    """Return the names of all agents, the installed ones included."""
    return (*AGENTS, *sorted(_installed()))


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="warprun.agents")}
