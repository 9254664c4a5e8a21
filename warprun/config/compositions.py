"""Configs that differ in numbers, such as those of a sweep: Hydra composes the first, and the others are made from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from typing import cast

from warprun.config.compose import completed, compose, composed
from warprun.config.kinds import kind
from warprun.config.overrides import AUTO, rewrite
from warprun.config.schema import Config

INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,17})")
NUMBER = re.compile(r"[+-]?((0|[1-9]\d{0,17})(\.\d{0,18})?|\.\d{1,18})([eE][+-]?\d{1,3})?")


class Compositions:
    """Composes configs as `compose` does, to the same values, and faster if one with the same keys came before."""

    def __init__(self) -> None:
        self._composed: dict[tuple[str, ...], Config] = {}
        """The other overrides and the keys of the numbers -> a config with such overrides."""

    def compose(self, overrides: Sequence[str]) -> Config:
        """Compose a config from `overrides` (key=value) and check it. Raises UserError."""
        split = (rewrite(override).partition("=") for override in overrides)
        values = {key: value for key, _, value in split if NUMBER.fullmatch(value) or (key == "run_dir" and _path(value))}
        others = [override for override in overrides if rewrite(override).partition("=")[0] not in values]
        keys = (*others, *values)
        former = self._composed.get(keys)
        if former is not None:
            try:
                config = former
                for key, value in values.items():
                    name = key.lstrip("+")
                    config = cast(Config, _with_value(config, name.split("."), value, kind(name)))
            except TypeError:  # a value of another type, which Hydra converts or refuses
                return compose(overrides)
            return completed(replace(config, origin=replace(config.origin, overrides=list(overrides))))
        config, refers = composed(overrides)
        if not refers and AUTO not in others and config.concurrency.name == "single":  # else n_envs follows from other settings
            self._composed[keys] = config
        return completed(config)


def _path(value: str) -> str | None:
    """Return the path in quotes that `rewrite` writes; None if it has characters that quotes change."""
    path = value[1:-1]
    return path if value[:1] == value[-1:] == "'" and path and not set(path) & set("'\\$") else None


def _with_value(settings: object, path: Sequence[str], value: str, wanted: type) -> object:
    """Return `settings` with `value` at `path`, in the type that the setting has, or else in that which Hydra reads. Raises TypeError."""
    if not path:
        return _converted(value, wanted)
    name, *rest = path
    if isinstance(settings, dict):
        return settings | {name: _with_value(settings.get(name), rest, value, wanted)}
    if is_dataclass(settings) and not isinstance(settings, type) and hasattr(settings, name):
        return replace(settings, **{name: _with_value(getattr(settings, name), rest, value, wanted)})
    raise TypeError


def _converted(value: str, wanted: type) -> int | float | str:
    path = _path(value)
    if wanted is str and path is not None:
        return path
    if wanted in (int, object) and INTEGER.fullmatch(value):
        return int(value)
    if wanted in (float, object) and NUMBER.fullmatch(value):
        return float(value)
    raise TypeError
