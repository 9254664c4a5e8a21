"""Configs that differ in numbers, such as those of a sweep: Hydra composes the first, and the others are made from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import is_dataclass, replace

from warprun.config.compose import completed, compose, composed
from warprun.config.overrides import AUTO, rewrite
from warprun.config.schema import Config

INTEGER = re.compile(r"[+-]?\d{1,18}")
NUMBER = re.compile(r"[+-]?(\d{1,18}|(?=\d|\.\d)\d{0,18}\.\d{0,18})([eE][+-]?\d{1,3})?")


class Compositions:
    """Composes configs as `compose` does, to the same values, and faster if one with the same keys came before."""

    def __init__(self) -> None:
        self._composed: dict[tuple[str, ...], Config] = {}
        """The other overrides and the keys of the numbers -> a config with such overrides."""

    def compose(self, overrides: Sequence[str]) -> Config:
        """Compose a config from `overrides` (key=value) and check it. Raises UserError."""
        values = {key: value for key, _, value in (rewrite(override).partition("=") for override in overrides) if _is_plain(key, value)}
        others = [override for override in overrides if rewrite(override).partition("=")[0] not in values]
        kind = (*others, *values)
        former = self._composed.get(kind)
        if former is not None:
            try:
                config = _with_values(former, values)
            except TypeError:  # a value of another type, which Hydra converts or refuses
                return compose(overrides)
            return completed(replace(config, origin=replace(config.origin, overrides=list(overrides))))
        config, refers = composed(overrides)
        if not refers and AUTO not in others and config.concurrency.name == "single":  # else n_envs follows from other settings
            self._composed[kind] = config
        return completed(config)


def _is_plain(key: str, value: str) -> bool:
    return NUMBER.fullmatch(value) is not None or (key == "run_dir" and _path(value) is not None)


def _path(value: str) -> str | None:
    """Return the path in quotes that `rewrite` writes; None if it has characters that quotes change."""
    path = value[1:-1]
    return path if value[:1] == value[-1:] == "'" and path and not set(path) & set("'\\$") else None


def _with_values(config: Config, values: dict[str, str]) -> Config:
    changed: object = config
    for key, value in values.items():
        changed = _with_value(changed, key.lstrip("+").split("."), value)
    assert isinstance(changed, Config)
    return changed


def _with_value(settings: object, path: Sequence[str], value: str) -> object:
    """Return `settings` with `value` at `path`, in the type of the value that is there. Raises TypeError."""
    if not path:
        return _converted(settings, value)
    name, *rest = path
    if isinstance(settings, dict):
        return settings | {name: _with_value(settings.get(name), rest, value)}
    if is_dataclass(settings) and not isinstance(settings, type):
        return replace(settings, **{name: _with_value(getattr(settings, name, None), rest, value)})
    raise TypeError


def _converted(there: object, value: str) -> int | float | str:
    if type(there) is int and INTEGER.fullmatch(value):
        return int(value)
    if type(there) is float and NUMBER.fullmatch(value):
        return float(value)
    path = _path(value)
    if type(there) is str and path is not None:
        return path
    raise TypeError
