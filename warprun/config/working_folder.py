"""The config files of the user in ./conf, read with limits. Each error is one line with the file and the line. No torch."""

from __future__ import annotations

from pathlib import Path

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun.config.overrides import GROUPS
from warprun.errors import UserError

MAX_FILE = 2**20
"""Bytes of a config file."""
MAX_DEPTH = 20
"""Of dicts and lists inside each other in a file."""
MAX_NODES = 50_000
"""Values of a config file."""


class WorkingFolder(FileConfigSource):
    """The config groups of warprun in ./conf. Its other files, such as those of another Hydra program, do not exist for Hydra."""

    @staticmethod
    def scheme() -> str:
        return "warprun"

    def is_group(self, config_path: str) -> bool:
        return config_path.partition("/")[0] in ("", *GROUPS) and super().is_group(config_path)

    def is_config(self, config_path: str) -> bool:
        return config_path.partition("/")[0] in GROUPS and super().is_config(config_path)

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a file. Raises UserError, with its name and the line."""
        name = self._normalize_file_name(config_path)
        text, config = read_yaml(Path(self.path, name), f"conf/{name}")
        return ConfigResult(self.provider, self.full_path(), config, self._get_header_dict(text[:512]))


def read_yaml(file: Path, name: str) -> tuple[str, DictConfig]:
    """Return the text and the content of a YAML file that holds a mapping; `name` begins the message of the UserError if it does not."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise UserError(f"{name} is larger than {MAX_FILE // 1024} KiB")
        text = content.decode()
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None and not isinstance(node, yaml.MappingNode):
            raise UserError(f"{name}:1: it must hold keys with values, such as `name: myenv`")
        if node is not None and _size(node, {}, 0) > MAX_NODES:
            raise UserError(f"{name} is larger than {MAX_NODES:,} values, counted with aliases, or nested deeper than {MAX_DEPTH} levels")
        config = OmegaConf.create(text)
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
