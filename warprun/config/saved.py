"""Fit a saved config, also of an earlier version, to the settings of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun.algorithms import config_class
from warprun.errors import UserError, printable
from warprun.learning.settings.agent import AgentConfig

UNFIT = "the saved config does not fit this version of warprun"


def agent_class(saved: Mapping[str, object]) -> type[AgentConfig]:
    """Return the class of the settings of the agent in a saved config. Raises UserError."""
    agent = saved.get("agent")
    name = agent.get("name") if isinstance(agent, Mapping) else None
    if not isinstance(name, str):
        raise UserError(f"{UNFIT}: it has no agent.name")
    try:
        return config_class(name)
    except ValueError as error:
        raise UserError(f"{UNFIT}: {printable(error)}") from error


def fitted(schema: DictConfig, saved: Mapping[str, object]) -> object:
    """Return the settings of `schema` with those of a saved config, also of an earlier version: newer ones get their defaults.

    Their values are not checked. Raises UserError.
    """
    try:
        return OmegaConf.to_object(OmegaConf.merge(schema, saved))
    except (OmegaConfBaseException, ValueError, TypeError, OverflowError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{UNFIT}: {printable(reason)}") from error


def agent_settings(saved: Mapping[str, object]) -> AgentConfig:
    """Return the settings of the agent in a saved config, as `fitted`. Raises UserError."""
    schema = OmegaConf.create({"agent": OmegaConf.structured(agent_class(saved)())})
    settings = fitted(schema, {"agent": saved["agent"]})
    assert isinstance(settings, dict)
    return cast(AgentConfig, settings["agent"])
