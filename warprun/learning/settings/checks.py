"""Checks of settings. Each error is one line that begins with the key and the value, such as `agent.groups.planner.gamma=2`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from warprun.errors import UserError, did_you_mean


def at_least(config: object, key: str, least: int, *names: str) -> None:
    """Raise UserError if one of the settings `names` of `config` is below `least`."""
    _check(config, key, names, lambda value: value >= least, f"be at least {least}")


def within(config: object, key: str, low: float, high: float, *names: str) -> None:
    """Raise UserError if one of the settings `names` of `config` lies outside `low`..`high`; None passes."""
    _check(config, key, names, lambda value: low <= value <= high, f"lie between {low} and {high}")


def below_one(config: object, key: str, *names: str) -> None:
    """Raise UserError if one of the settings `names` of `config` is negative, 1 or more."""
    _check(config, key, names, lambda value: 0 <= value < 1, "be at least 0 and below 1")


def positive(config: object, key: str, *names: str) -> None:
    """Raise UserError if one of the settings `names` of `config` is not above 0 and finite; None passes."""
    _check(config, key, names, lambda value: 0 < value < math.inf, "be above 0 and finite")


def not_negative(config: object, key: str, *names: str) -> None:
    """Raise UserError if one of the settings `names` of `config` is negative or infinite; None passes."""
    _check(config, key, names, lambda value: 0 <= value < math.inf, "be 0 or more, and finite")


def finite(config: object, key: str, *names: str) -> None:
    """Raise UserError if one of the settings `names` of `config` is NaN or infinite; None passes."""
    _check(config, key, names, math.isfinite, "be finite")


def one_of(config: object, key: str, name: str, known: tuple[str, ...]) -> None:
    """Raise UserError if the setting `name` of `config` is not one of `known`."""
    value = getattr(config, name)
    if value not in known:
        raise UserError(f"{key}.{name}={value}: unknown; {did_you_mean(value, list(known))}")


def _check(config: object, key: str, names: Iterable[str], fits: Callable[[float], bool], must: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not fits(value):
            raise UserError(f"{key}.{name}={value}: it must {must}")
