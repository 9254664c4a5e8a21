"""Checks of settings. Each error is one line that begins with the key and the value, such as `agent.groups.planner.gamma=2`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

from warprun.errors import UserError, did_you_mean
from warprun.learning.settings import (
    ACTIVATIONS,
    OPTIMIZERS,
    AgentConfig,
    LayersConfig,
    NetworkConfig,
    OffPolicyConfig,
    OnPolicyConfig,
    group_config,
)

C = TypeVar("C", bound=AgentConfig)


def check(config: C, check_settings: Callable[[C, str], None]) -> None:
    """Raise UserError for a value that cannot work, in the settings of all groups or of one; `check_settings` is the agent's."""
    check_settings(config, "agent")
    for name in config.groups:
        check_settings(group_config(config, name), f"agent.groups.{name}")


def check_groups(config: AgentConfig, names: Iterable[str]) -> None:
    """Raise a UserError if `agent.groups` names a group that the environment, with groups `names`, does not have."""
    names = list(names)
    for name in config.groups:
        if name not in names:
            raise UserError(f"agent.groups.{name}: the environment has no such group; {did_you_mean(name, names)}")


def check_shared(config: OnPolicyConfig | OffPolicyConfig, key: str) -> None:
    """Raise UserError for a value that cannot work, among the settings that on-policy and off-policy agents share."""
    at_least(config, key, 1, "horizon", "n_step")
    within(config, key, 0, 1, "gamma")
    positive(config, key, "learning_rate", "max_grad_norm")
    not_negative(config, key, "learning_rate_end")
    one_of(config.optimizer, f"{key}.optimizer", "name", OPTIMIZERS)
    below_one(config.optimizer, f"{key}.optimizer", "beta1", "beta2", "alpha")
    positive(config.optimizer, f"{key}.optimizer", "eps")
    _check_layers(config.network, f"{key}.network")


def _check_layers(network: NetworkConfig | LayersConfig, key: str) -> None:
    sizes = network.hidden
    if not sizes or any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in sizes):
        raise UserError(f"{key}.hidden={sizes}: give one size of at least 1 for each hidden layer, such as [64,64]")
    one_of(network, key, "activation", ACTIVATIONS)


def at_least(config: object, key: str, least: int, *names: str) -> None:
    """Raise UserError if one of the settings `names` of `config` is below `least`."""
    for name in names:
        if not getattr(config, name) >= least:
            raise UserError(f"{key}.{name}={getattr(config, name)}: it must be at least {least}")


def within(config: object, key: str, low: float, high: float, *names: str) -> None:
    """Raise UserError if one of the settings `names` of `config` lies outside `low`..`high`."""
    for name in names:
        if not low <= getattr(config, name) <= high:
            raise UserError(f"{key}.{name}={getattr(config, name)}: it must lie between {low} and {high}")


def below_one(config: object, key: str, *names: str) -> None:
    """Raise UserError if one of the settings `names` of `config` is negative, 1 or more."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise UserError(f"{key}.{name}={getattr(config, name)}: it must be at least 0 and below 1")


def positive(config: object, key: str, *names: str) -> None:
    """Raise UserError if one of the settings `names` of `config` is not above 0 and finite; None passes."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{key}.{name}={value}: it must be above 0 and finite")


def not_negative(config: object, key: str, *names: str) -> None:
    """Raise UserError if one of the settings `names` of `config` is negative or infinite; None passes."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 <= value < math.inf:
            raise UserError(f"{key}.{name}={value}: it must be 0 or more, and finite")


def one_of(config: object, key: str, name: str, known: tuple[str, ...]) -> None:
    """Raise UserError if the setting `name` of `config` is not one of `known`."""
    value = getattr(config, name)
    if value not in known:
        raise UserError(f"{key}.{name}={value}: unknown; {did_you_mean(value, list(known))}")
