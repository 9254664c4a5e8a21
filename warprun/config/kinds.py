"""The type of the setting that a key names. A value is converted by the type of the setting that takes it, wherever it was written."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from decimal import Decimal
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Union, cast, get_args, get_origin, get_type_hints

from warprun.algorithms import AGENTS
from warprun.config.concurrency import CONCURRENCY
from warprun.config.schema import Config
from warprun.errors import require, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SECTIONS: dict[str, list[type]] = {
    "": [Config],
    "agent": [shipped.settings for shipped in AGENTS.values()],
    "concurrency": [*CONCURRENCY.values()],
}
"""Section whose settings have a class -> the classes that it can have."""
GROUPS = "groups"
"""A dict of the settings of an agent, whose items have settings of the agent."""

CONTAINERS: dict[object, str] = {list: "list in brackets", dict: "dict in braces"}
MAX_DIGITS = 40
"""Of one number."""
NUMBER = re.compile(r"[-+]?(?=\.?\d)[\d_]*\.?[\d_]*([eE][-+]?\d+)?")


def know(section: str, settings: type) -> None:
    """Let keys of `section` be those of the class `settings` too. A second call changes nothing."""
    known = SECTIONS.setdefault(section, [])
    if settings not in known:
        known.append(settings)
        kind.cache_clear()


@cache
def kind(key: str) -> type:
    """Return the type of the setting called `key`, of a list that of its items; `object` if it takes any value or there is none."""
    section, *names = key.split(".")
    if section not in SECTIONS:
        section, names = "", [section, *names]
    elif names[:1] == [GROUPS]:
        names = names[2:]
    return next((found for settings in SECTIONS[section] if (found := _kind(settings, names)) is not object), object)


def _kind(of: object, names: list[str]) -> type:
    found = _alone(of)
    if not isinstance(found, type):
        return object
    if not is_dataclass(found):
        return object if names else found
    return _kind(_hints(found).get(names[0], object), names[1:]) if names else object


def _alone(of: object) -> object:
    """Return the type of a value that is not null, of a list that of its items."""
    of = _not_null(of)
    if get_origin(of) in (list, tuple):
        return _alone(get_args(of)[0])
    return object if get_origin(of) is not None else of


def _not_null(of: object) -> object:
    if get_origin(of) in (Union, UnionType):
        others = [each for each in get_args(of) if each is not NoneType]
        return others[0] if len(others) == 1 else object
    return of


@cache
def _hints(settings: type) -> dict[str, object]:
    return get_type_hints(settings)


def check_shape(settings: DataclassInstance, key: str = "") -> None:
    """Raise UserError if a setting holds a section, a list or a dict in the place of something else: a reference can put anything there."""
    for setting in fields(settings):
        name, value = f"{key}.{setting.name}" if key else setting.name, getattr(settings, setting.name)
        wanted = _not_null(_hints(type(settings))[setting.name])
        made = get_origin(wanted) or wanted
        if name in SECTIONS and is_dataclass(value):
            made = type(value)
        if isinstance(made, type) and is_dataclass(made):
            require(isinstance(value, made), f"{_shown(name, value)} must be a section of settings")
            check_shape(value, name)
            continue
        if made in CONTAINERS:
            require(value is None or isinstance(value, cast(type, made)), f"{_shown(name, value)} must be a {CONTAINERS[made]}")
        elif isinstance(made, type) and made is not object:
            require(not isinstance(value, list | dict) and not is_dataclass(value), f"{_shown(name, value)} must be a single value")
        _check_plain(name, value)


def _check_plain(key: str, value: object) -> None:
    require(not is_dataclass(value), f"{key} cannot be a section of settings")
    for name, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        _check_plain(f"{key}.{name}", item)


def _shown(name: str, value: object) -> str:
    return f"{name}, here a section of settings," if is_dataclass(value) else f"{name}={shown(value)}"


def whole(text: str) -> int | None:
    """Return the whole number that is written as 10000, 1e4 or 10000.0; None if the text is none, or has too many digits."""
    if not NUMBER.fullmatch(text):
        return None
    number = Decimal(text.replace("_", ""))
    return int(number) if number.adjusted() < MAX_DIGITS and number == number.to_integral_value() else None
