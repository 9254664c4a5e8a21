"""Read configs that runs have saved, which somebody else may have made, within limits. `own_files` reads the files of the user."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import yaml
from omegaconf._utils import get_yaml_loader

from warprun.errors import UserError, printable
from warprun.files import read_limited

Values = TypeVar("Values")

MAX_BYTES = 1 << 20
"""Of a file."""
MAX_NODES = 20_000
"""Most values, lists and sections of a saved config; one of warprun has about 200."""
MAX_DEPTH = 20
"""Of lists and sections inside each other."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""That of libyaml, if PyYAML was built with it, is ten times as fast."""
SECTION = re.compile(r"^(?=[A-Za-z_])", re.MULTILINE)
"""Where a key of the top level begins. A text in quotes that goes on there is found out: a part of it is no YAML."""
END = re.compile(r"^(?:\.\.\.|---)", re.MULTILINE)
"""Ends a document of YAML, or begins one."""
NUMBER, PATH = re.compile(r"(seed): (0|[1-9]\d{0,17})\n", re.ASCII), re.compile(r"(run_dir): (/[\w./-]{0,999})\n", re.ASCII)
"""Lines that differ in all runs of a sweep and say the same in all of YAML: a whole number, and letters, digits, `_`, `-`, `.` and `/`."""
ORIGIN = re.compile(
    r"(origin:\n(?:  \w+: [\w./-]+\n)*  overrides:\n)((?:  - [A-Za-z][\w.]*=[\w./,-]{1,999}\n)+)((?:  \w.*)?)", re.ASCII | re.DOTALL
)
"""A section whose list of overrides differs in all runs of a sweep: after lines of one plain value, plain texts, and then another key."""
MAX_CHARACTERS = 10_000
"""Longest value. YAML has numbers whose conversion takes the square of their length."""


class _SavedLoader(LOADER):  # type: ignore[misc, valid-type]
    """The loader of saved configs: what is a number is what OmegaConf, which writes them, takes for one."""

    yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        found: dict[object, object] = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            raise ValueError(f"line {node.start_mark.line + 1}: a key is there twice")
        return found


class Section(NamedTuple):
    """A part of a saved config."""

    config: dict[object, object]
    settings: dict[str, object]
    """The same by dotted key."""
    nodes: int
    """Values, lists and sections in it."""

    @staticmethod
    def of(config: dict[object, object], nodes: int) -> Section:
        return Section(config, dict(flat_items(config)), nodes)


def read_config(path: Path) -> dict[str, object]:
    """Return the config in the YAML file `path`. Raises UserError, and FileNotFoundError.

    A run stores resolved configs of plain values. So everything else is refused: interpolations, which could read environment variables,
    anchors, whose expansion can be exponentially large, tags, and values of other types.
    """
    return {str(key): _copied(value) for each in _sections(path) for key, value in each.config.items()}


def read_settings(path: Path) -> dict[str, object]:
    """Return the same by dotted key, see `flat_items`. Lists and empty sections in it are shared: nobody may change them."""
    return {key: value for each in _sections(path) for key, value in each.settings.items()}


def _sections(path: Path) -> list[Section]:
    """Return the parts of a config. Raises what `read_config` does."""
    try:
        text = read_limited(path, MAX_BYTES).decode()
        if found := _by_sections(text):
            return found
        config, nodes = _parsed(text)
        if isinstance(config, dict):
            _check_values(config, "")
    except UserError:
        raise
    except (yaml.YAMLError, OSError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"cannot read {printable(path)}: {printable(reason)}") from None
    if not isinstance(config, dict):
        raise UserError(f"cannot read {printable(path)}: it holds no config")
    return [Section.of(config, nodes)]


def _by_sections(text: str) -> list[Section] | None:
    """Return the config in a text whose top-level keys are read one by one: the runs of a sweep have most sections in common.

    None for a text that must be read as a whole, perhaps to say what is wrong with it.
    """
    if END.search(text):
        return None
    try:
        found = [_line(section) or _origin(section) or _section(section) for section in SECTION.split(text) if section]
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return None
    keys = {key for section in found for key in section.config}
    return found if 0 < len(keys) == len(found) and sum(section.nodes for section in found) <= MAX_NODES else None


def _line(text: str) -> Section | None:
    """Return the section of a line that needs no reader of YAML; None for others."""
    number, path = NUMBER.fullmatch(text), PATH.fullmatch(text)
    found = number or path
    return Section.of({found[1]: int(found[2]) if number else found[2]}, 3) if found else None


def _origin(text: str) -> Section | None:
    """Return the section that says how a run was made, of which only what other runs have in common is read as YAML; None for others."""
    found = ORIGIN.fullmatch(text)
    if found is None:
        return None
    head, listed, rest = found.groups()
    others, overrides = _section(f"{head[:-1]} []\n{rest}"), [line[4:] for line in listed.splitlines()]
    origin = cast("dict[object, object]", others.config["origin"]) | {"overrides": overrides}
    return Section({"origin": origin}, others.settings | {"origin.overrides": overrides}, others.nodes + len(overrides))


@lru_cache(maxsize=512)
def _section(text: str) -> Section:
    config, nodes = _parsed(text)
    if not isinstance(config, dict) or len(config) != 1:
        raise ValueError("no section")
    _check_values(config, "")
    return Section.of(config, nodes)


def _copied(value: Values) -> Values:
    """Return a copy of a value and of the lists and sections in it; the module `copy` would look for objects that are there twice."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}  # type: ignore[return-value]
    return [_copied(each) for each in value] if isinstance(value, list) else value  # type: ignore[return-value]


def _parsed(text: str) -> tuple[object, int]:
    """Return what a text holds, and of how many values, lists and sections."""
    nodes = _check_events(text)
    return yaml.load(text, Loader=_SavedLoader), nodes


def flat_items(container: Mapping[Any, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and the value of every setting of a config; an empty section is a value."""
    for key, value in container.items():
        if isinstance(value, Mapping) and value:
            yield from flat_items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check_events(text: str) -> int:
    """Return the number of values, lists and sections of YAML, before it is built.

    Raises ValueError if it is too large, too deep or has more than plain values.
    """
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
    return nodes


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


def texts(container: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in a config, with its key; `container` is made of dicts and lists, whose own key is `key`."""
    if isinstance(container, str):
        yield key, container
    elif isinstance(container, dict):
        for name, value in container.items():
            yield from texts(value, f"{key}.{name}" if key else str(name))
    elif isinstance(container, list):
        for value in container:
            yield from texts(value, key)
