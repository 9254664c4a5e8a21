"""Settings of verbs other than `train`, such as `warprun eval RUN episodes=10`. Imports neither numba nor torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

from warprun.errors import UserError, check_one_of, nearest
from warprun.run_folder import LINES

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Acting(Protocol):
    """The settings that all verbs of a trained agent have."""

    episodes: int
    device: str
    seed: int
    checkpoint: str


def read_settings(verb: str, settings: DataclassInstance, arguments: Sequence[str]) -> list[str]:
    """Set the fields of `settings` that `arguments` give, each in the type of its default; return the other arguments.

    Raises UserError.
    """
    known = [field.name for field in fields(settings)]
    given = [argument for argument in arguments if is_setting(argument)]
    for argument in given:
        key, _, value = argument.partition("=")
        if key not in known:
            raise UserError(f"{verb} has no setting {key!r}{nearest(key, known)} (there are: {', '.join(known)})")
        setattr(settings, key, _convert(key, value, getattr(settings, key)))
        if key in ("episodes", "every") and getattr(settings, key) < 1:
            raise UserError(f"{argument} must be at least 1")
    return [argument for argument in arguments if argument not in given]


def is_setting(argument: str) -> bool:
    """Return whether an argument is a setting `key=value` and not a path, which can have `=` in it too.

    An existing file or folder is a path, and so is a name that begins with a digit, as job folders of earlier versions
    do.
    """
    key, equals, _ = argument.partition("=")
    return bool(equals) and "/" not in key and not key[:1].isdigit() and not os.path.exists(argument)


def one_run(verb: str, names: Sequence[str]) -> str:
    """Return the run that is named, "" if none is. Raises UserError for several."""
    if len(names) > 1:
        raise UserError(f"{verb} takes one run, not {len(names)}: {' '.join(names)}")
    return names[0] if names else ""


def with_convolutions(overrides: Sequence[str]) -> list[str]:
    """Return the settings of a verb that trains no agent, with convolutions if observations are images: a config has an agent that reads
    them. Raises UserError.
    """
    from warprun.config.compose import composed
    from warprun.config.schema import load_environment

    config, _ = composed(overrides)
    is_plain = config.agent.network.encoder is None and config.agent.network.module is None
    groups = load_environment(config.env, config.concurrency.parallel)[0].spec.groups if is_plain else ()
    images = any(field.kind == "image" for group in groups for field in group.observation.fields)
    return [*overrides, *(["agent.network=cnn"] if images else [])]


def check_settings(settings: Acting) -> None:
    """Raise UserError for values that cannot work."""
    from warprun.kernels.driver import check_cuda, check_device

    if not 0 <= settings.seed < 2**64:
        raise UserError(f"seed={settings.seed} must be from 0 to 2^64 - 1")
    check_one_of("checkpoint", settings.checkpoint, LINES)
    check_device(settings.device)
    if settings.device == "cuda":
        check_cuda()


def whole_number(key: str, value: str) -> int:
    """Return a whole number, which may be written as 1e4. Raises UserError."""
    try:
        number = float(value)
        whole = int(value) if value.isdigit() else int(number)
    except (ValueError, OverflowError):
        whole, number = 0, 0.5
    if float(whole) != number:
        raise UserError(f"{key} must be a whole number, not {value!r}")
    return whole


def _convert(key: str, value: str, default: object) -> bool | int | float | str:
    """Return `value` in the type of `default`. Raises UserError."""
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise UserError(f"{key} must be true or false, not {value!r}")
        return value.lower() == "true"
    if isinstance(default, int):
        return whole_number(key, value)
    return _number(key, value) if isinstance(default, float) else value


def _number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UserError(f"{key} must be a number, not {value!r}") from None
