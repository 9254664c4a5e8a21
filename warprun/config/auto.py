"""`n_envs=auto` before and after the measurement: the settings that belong to a number of environments. Neither numba nor torch."""

from __future__ import annotations

from dataclasses import replace

from warprun.config.schema import Config, OriginConfig


def is_open(config: Config) -> bool:
    """Return whether the number of environments still has to be chosen."""
    return config.origin.n_envs == OriginConfig.MEASURE


def sized(config: Config, n_envs: int, how: str) -> Config:
    """Return a config for `n_envs` environments, with the settings of the agent that belong to them; `how` they were chosen is kept."""
    agent = config.agent.resized(n_envs / config.n_envs)
    return replace(config, n_envs=n_envs, agent=agent, origin=replace(config.origin, n_envs=how))


def as_measured(config: Config, before: Config) -> Config:
    """Return a config with `n_envs=auto` for a run that continues, with the number that was chosen `before`; others as they are."""
    return sized(config, before.n_envs, before.origin.n_envs or "") if is_open(config) else config
