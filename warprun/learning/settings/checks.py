"""Checks of settings. Each error is one line that begins with the key and the value, such as `agent.groups.planner.gamma=2`."""

from __future__ import annotations

import math

from warprun.errors import UserError, did_you_mean


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


def finite(config: object, key: str, *names: str) -> None:
    """Raise UserError if one of the settings `names` of `config` is NaN or infinite; None passes."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not math.isfinite(value):
            raise UserError(f"{key}.{name}={value}: it must be finite")


def one_of(config: object, key: str, name: str, known: tuple[str, ...]) -> None:
    """Raise UserError if the setting `name` of `config` is not one of `known`."""
    value = getattr(config, name)
    if value not in known:
        raise UserError(f"{key}.{name}={value}: unknown; {did_you_mean(value, list(known))}")
