"""Read a saved config: YAML of plain values, with limits, from a file that somebody else may have made. No numba, no torch."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun.errors import UserError, printable
from warprun.files import read_limited

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
"""Most values, lists and sections. A config of warprun has about 200."""
MAX_DEPTH = 20
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""That of libyaml, if PyYAML was built with it, is ten times as fast."""
MAX_CHARACTERS = 10_000
"""Longest value. YAML has numbers whose conversion takes the square of their length."""


def read_config(path: Path) -> dict[str, object]:
    """Return the config in the YAML file `path`. Raises UserError, and FileNotFoundError.

    A run stores resolved configs of plain values. So everything else is refused: interpolations, which could read environment variables,
    anchors, whose expansion can be exponentially large, tags, and values of other types.
    """
    try:
        text = read_limited(path, MAX_BYTES).decode()
        _check_events(text)
        config = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)
    except UserError:
        raise
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"cannot read {printable(path)}: {printable(reason)}") from None
    if not isinstance(config, dict):
        raise UserError(f"cannot read {printable(path)}: it holds no config")
    try:
        _check_values(config, "")
    except ValueError as error:
        raise UserError(f"cannot read {printable(path)}: {error}") from None
    return {str(key): value for key, value in config.items()}


def leaves(container: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and the value of every setting of a config; an empty section is a value."""
    for key, value in container.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check_events(text: str) -> None:
    """Raise ValueError for YAML that is too large, too deep or has more than plain values, before it is built."""
    depth = nodes = 0
    for event in yaml.parse(text, Loader=LOADER):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
                raise ValueError(f"line {line}: anchors (& and *) are not allowed here")
            if event.tag is not None:
                raise ValueError(f"line {line}: tags (!) are not allowed here")
            if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_CHARACTERS:
                raise ValueError(f"line {line}: a value has more than {MAX_CHARACTERS:,} characters")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise ValueError(f"line {line}: it is nested deeper than {MAX_DEPTH} levels or has more than {MAX_NODES:,} values")


def _check_values(value: object, key: str) -> None:
    """Raise ValueError for a value that no run stores."""
    if isinstance(value, dict):
        for name, each in value.items():
            if not isinstance(name, str | int):
                raise ValueError(f"{printable(key)} has a key that is neither text nor a whole number")
            _check_values(name, key)
            _check_values(each, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for each in value:
            _check_values(each, key)
    elif isinstance(value, str):
        if "${" in value:
            raise ValueError(f"{printable(key)} is an interpolation; a saved config has none")
        if "\0" in value:
            raise ValueError(f"{printable(key)} has a zero byte")
    elif isinstance(value, int):
        if value.bit_length() > 64:
            raise ValueError(f"{printable(key)} has more than 64 bits")
    elif not isinstance(value, float | None):
        raise ValueError(f"{printable(key)} is a {type(value).__name__}")
