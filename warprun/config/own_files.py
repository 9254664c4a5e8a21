"""Read the config files of the user, within limits: each value as the setting takes it that it is for, or not at all."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from warprun.config.kinds import kind, whole
from warprun.config.reading import MAX_BYTES, MAX_DEPTH
from warprun.errors import UserError
from warprun.files import open_regular

MAX_NODES = 50_000
"""Of a file, counted with aliases."""
_Loader = get_yaml_loader()
BOOL, INT, FLOAT, TEXT, MERGE = (f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "str", "merge"))
PACKAGE = re.compile(r"\s*#\s*@package\s+(\S+)")
"""The line with which a file says of which section its settings are; "_global_": of the whole config."""
ODD = re.compile(r".*:.*|[-+]?0[\d_b].*|yes|no|on|off", re.IGNORECASE)
"""What YAML 1.1 takes for a number, to the base of 60, 8 or 2, or for a boolean, and the command line for text."""


def read_yaml(file: Path, name: str, group: str) -> tuple[str, DictConfig]:
    """Return the text and the content of a YAML file of a config group, such as `env`; its first lines may name another package.

    `name` begins the message of the UserError for a file that does not hold a mapping of values.
    """
    try:
        with open_regular(file) as opened:
            content = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UserError(f"{name} is larger than {MAX_BYTES // 1024} KiB")
        text = content.decode()
        package = PACKAGE.match(text)
        section = group if package is None or package[1] == "_group_" else package[1].replace("_global_", "")
        node = yaml.compose(text, Loader=_Loader)
        if node is not None and not isinstance(node, yaml.MappingNode):
            raise UserError(f"{name}:1: it must hold keys with values, such as `name: myenv`")
        if node is not None and _size(node, {}, 0) > MAX_NODES:
            limits = f"larger than {MAX_NODES:,} values, counted with aliases, or nested deeper than {MAX_DEPTH} levels"
            raise UserError(f"{name} is {limits}")
        config = OmegaConf.create({} if node is None else _Loader("").construct_document(_fitted(node, section, name)))
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{name}:{line}: it is not text in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        place = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{name}{place}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{name}: {str(error).splitlines()[0]}") from None
    except (OmegaConfBaseException, ValueError) as error:
        raise UserError(f"{name}: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UserError(f"{name} is nested too deeply") from None
    assert isinstance(config, DictConfig)
    return text, config


def _fitted(node: yaml.Node, key: str, name: str) -> yaml.Node:
    """Return a node whose values have the types of the settings that take them; `key` is that of the node. Raises UserError."""
    if isinstance(node, yaml.MappingNode):
        pairs = [
            (_fitted(own, "", name), _fitted(value, key if own.tag == MERGE else f"{key}.{own.value}".lstrip("."), name))
            for own, value in node.value
        ]
        return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark)
    if isinstance(node, yaml.SequenceNode):
        return yaml.SequenceNode(node.tag, [_fitted(item, key, name) for item in node.value], node.start_mark, node.end_mark)
    if node.style is not None or node.tag not in (BOOL, INT, FLOAT):
        return node
    wanted = kind(key)
    if wanted is str:
        return yaml.ScalarNode(TEXT, node.value, node.start_mark, node.end_mark)
    if ODD.fullmatch(node.value) and not (wanted is bool and node.tag == BOOL):
        read = str(_Loader("").construct_object(node)).lower()
        place = f"{name}:{node.start_mark.line + 1}"
        raise UserError(f"{place}: {node.value} without quotes is {read} in YAML; write {node.value!r}, or {read}")
    number = whole(node.value) if wanted is int else None
    return node if number is None else yaml.ScalarNode(INT, str(number), node.start_mark, node.end_mark)


def _size(node: yaml.Node, counted: dict[int, int], depth: int) -> int:
    """Return the number of nodes below `node` after aliases are replaced, without replacing them; above the limit if they lie too deep."""
    if depth > MAX_DEPTH:
        return MAX_NODES + 1
    if id(node) not in counted:
        counted[id(node)] = MAX_NODES  # if it contains itself
        children = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        counted[id(node)] = 1 + sum(_size(child, counted, depth + 1) for child in children)
    return counted[id(node)]
