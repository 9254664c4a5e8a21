"""Composes a checked Config from overrides, with Hydra. Each error becomes a message of one line."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TypedDict

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from warprun.algorithms import AGENTS, agent_names, config_class
from warprun.config.registry import CONF, conf_folder, conf_packages, nearest, options
from warprun.config.schema import Config, EnvConfig, OriginConfig, SingleConfig, check
from warprun.errors import UserError
from warprun.kernels.driver import prepare
from warprun.renamed import RENAMED, new_name


class _VersionBase(TypedDict, total=False):
    version_base: None


# Hydra 1.4 has no argument `version_base` any more.
VERSION_BASE: _VersionBase = {"version_base": None} if tuple(map(int, hydra.__version__.split(".")[:2])) < (1, 4) else {}

PRIMARY = "warprun"
"""The primary config, conf/warprun.yaml. Its name is not `config`, because another project may have a `conf/config.yaml`."""

FREE = ("env.params.", "env.randomize.", "env.options.", "agent.groups.", "agent.network.options.")
"""Keys below these are not part of the schema, so Hydra requires a `+` before each."""

NO_AGENT = "~agent"
"""Override that composes a config without an agent."""
GROUPS = {"env": "environment", "agent": "agent", "concurrency": "concurrency", "experiment": "experiment", "tuned": "tuned settings"}


class WarprunSearchPath(SearchPathPlugin):
    """Look for config groups in ./conf, then in installed packages, then in warprun itself."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for package in reversed([package for package in conf_packages() if package != CONF]):
            search_path.prepend(package, f"pkg://{package}")
        folder = conf_folder()
        if folder:
            search_path.prepend("working folder", f"file://{folder}")


def register(overrides: Sequence[str]) -> None:
    """Register the schemas and the search path with Hydra. A second call changes nothing.

    The modules of agents, which define their schemas, import torch. With NO_AGENT among `overrides` they are not imported.
    """
    # An installed agent is imported only if the overrides name it, or an experiment, whose file can choose any agent.
    asked = {name for override in overrides if override.startswith("agent=") for name in override[6:].split(",")}
    if any(override.startswith("experiment=") for override in overrides):
        asked |= set(agent_names())
    _store("config_schema", Config)
    _store("single_schema", SingleConfig)
    Plugins.instance().register(WarprunSearchPath)
    if NO_AGENT in overrides:
        return
    for override in overrides:
        if override.startswith("device="):  # Numba reads at its import whether to simulate CUDA
            prepare(override.removeprefix("device="))
    for name in {*AGENTS, *(asked & set(agent_names()))}:
        _store(f"{name}_schema", config_class(name))


_stored: set[str] = set()


def _store(name: str, schema: type) -> None:
    # Hydra 1.4 warns about a schema that is stored twice.
    if name not in _stored:
        ConfigStore.instance().store(name=name, node=schema)
        _stored.add(name)


def compose(overrides: Sequence[str]) -> Config:
    """Compose a config from `overrides` (key=value) and check it. Raises UserError."""
    try:
        config = _build(overrides)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(explain(error)) from error
    check_tuned(overrides)
    check(config)
    return config


def environment_names() -> list[str]:
    """Return the names of all environments."""
    register([NO_AGENT])
    with hydra.initialize_config_module(CONF, **VERSION_BASE):
        return options("env")


def environment_config(name: str) -> EnvConfig:
    """Return the config of an environment. Its keys are checked, its values are not. Raises UserError."""
    try:
        return _env([f"env={name}", "tuned=none", NO_AGENT])
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(explain(error)) from error


def build(composed: DictConfig, choices: Mapping[str, str | None], overrides: Sequence[str]) -> Config:
    """Convert a config composed by Hydra to a Config; `choices` maps each config group to the chosen name."""
    config = OmegaConf.to_object(composed)
    assert isinstance(config, Config)
    tuned = choices.get("tuned")
    config.origin = OriginConfig(tuned if tuned in options("tuned") else None, list(overrides))
    return config


def note_on_tuned(config: Config) -> str | None:
    """Return a line that names the tuned settings in use and the overrides that they were not tuned for; None without tuned settings."""
    if config.origin.tuned is None:
        return None
    beside = [setting for setting in config.origin.overrides if setting.startswith(("agent.", "env."))]
    untried = f"; they were not tuned for {' '.join(beside)}" if beside else ""
    return f"settings of tuned/{config.origin.tuned} apply (tuned=none turns them off){untried}"


def rewrite(override: str) -> str:
    """Return an override in the form that Hydra accepts: 1e4 as 10000, options under `env.options`, free keys with `++` before them."""
    key, equals, value = override.partition("=")
    key = key.lstrip("+")
    if key.startswith("hydra") or not equals:
        return override
    if key not in ("name", "run_dir", "output_root") and not set("'\"") & set(value):
        value = _SCIENTIFIC.sub(_written_out, value)
    if _OPTION.fullmatch(key) and key.removeprefix("env.") not in _ENV_KEYS:
        key = key.replace("env.", "env.options.")
    return f"{'++' if key.startswith(FREE) else ''}{key}={value}"


_OPTION = re.compile(r"env\.\w+")
_ENV_KEYS = {f.name for f in dataclasses.fields(EnvConfig)} | {key.removeprefix("env.") for key in RENAMED if key.startswith("env.")}
"""Any other key below `env` is an option of the environment."""


def explain(error: Exception) -> str:
    """Return an error of Hydra or OmegaConf as one line, with the most similar known name."""
    cause = next((e for e in _causes(error) if isinstance(e, OmegaConfBaseException)), None)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        known = options(group)
        return f"unknown {GROUPS.get(group, group)} {name!r}{nearest(name, known)} (there are: {', '.join(known)})"
    if isinstance(error, OverrideParseException):
        wanted = "" if "=" in error.override else ": write key=value"
        return f"cannot read {error.override!r}{wanted or ': ' + _first_line(error)}"
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        file = re.match(r"In '([\w/.]+)'", str(error))
        where = f"in {file[1]}.yaml: " if file and "/" in file[1] else ""
        key, beside = str(cause.full_key), cause.parent_node
        new = new_name(key, beside if isinstance(beside, DictConfig) else ())
        return f"{where}{key} is now {new}" if new else f"{where}unknown key {key!r}{_nearest_key(key, beside)}"
    if cause is not None and cause.full_key:
        return _refused_value(str(cause.full_key), _first_line(cause))
    if "Ambiguous value" in str(error):
        return f"{_first_line(error)}: add -m to run every value, or write a list as [a,b]"
    if str(error).startswith("Config group override"):
        return f"{', '.join(GROUPS)}: write the name of one, such as env=cartpole or tuned=none"
    return _first_line(cause or error)


def _build(overrides: Sequence[str]) -> Config:
    composed = _compose(overrides)
    choices = composed.hydra.runtime.choices
    OmegaConf.set_struct(composed, False)
    del composed["hydra"]
    return build(composed, choices, overrides)


def _env(overrides: Sequence[str]) -> EnvConfig:
    env = OmegaConf.to_object(_compose(overrides).env)
    assert isinstance(env, EnvConfig)
    return env


def _compose(overrides: Sequence[str]) -> DictConfig:
    register(overrides)
    with hydra.initialize_config_module(CONF, **VERSION_BASE):
        return hydra.compose(PRIMARY, [rewrite(override) for override in overrides], return_hydra_config=True)


_SCIENTIFIC = re.compile(r"(?:^|(?<=[\[({,:\s]))\d+(?:\.\d*)?[eE]\+?\d{1,2}(?=$|[\])},\s])")
"""A number such as 1e3 that is a whole value or a whole item of a list, and not a part of a file name."""


def _written_out(match: re.Match[str]) -> str:
    number = Decimal(match.group())
    return str(int(number)) if number == number.to_integral_value() else match.group()


def check_tuned(overrides: Sequence[str]) -> None:
    """Raise UserError if `overrides` name tuned settings that do not exist."""
    # Tuned settings are optional, so Hydra ignores a misspelt name.
    for override in overrides:
        key, _, name = override.partition("=")
        if key == "tuned" and name not in ("none", *options("tuned")):
            known = ["none", *options("tuned")]
            raise UserError(f"unknown tuned settings {name!r}{nearest(name, known)} (there are: {', '.join(known)})")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__  # Hydra sets no cause for errors in a file of a group


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def _refused_value(key: str, reason: str) -> str:
    for pattern, meaning in _REFUSED.items():
        match = re.search(pattern, reason)
        if match:
            return f"{key} {meaning}" + (f", not {match[1]!r}" if match.groups() else "")
    return f"{key}: {reason}"


_REFUSED = {
    r"^Value '(.*)' of type '.*' could not be converted to Integer": "must be a whole number",
    r"^Value '(.*)' of type '.*' could not be converted to Float": "must be a number",
    r"^Value '(.*)' is not a valid bool": "must be true or false",
    r"is not a ListConfig": "must be a list in brackets, such as [64,64]",
    r"is not Optional": "cannot be null",
}
"""Pattern of a message of OmegaConf -> the message for users."""


def _nearest_key(key: str, refused_by: Node | None) -> str:
    """Return the end of a message that refuses `key`: the most similar key of the composed config, or the keys beside it.

    `refused_by` is the part of the config that refused the key. It belongs to the composed config, so it has the keys of the chosen agent.
    """
    if refused_by is None:
        return ""
    composed = OmegaConf.to_container(refused_by._get_root())
    assert isinstance(composed, dict)
    composed.pop("hydra", None)
    known = list(_keys(composed, ""))
    parent, _, name = key.rpartition(".")
    if parent and parent not in known:
        return nearest(key, known)
    below = [path for path in known if not parent or path.startswith(f"{parent}.")]
    beside = {path.rpartition(".")[2]: path for path in below if path.rpartition(".")[0] == parent}
    deeper = {path.rpartition(".")[2]: path for path in reversed(below)}
    initials = {"".join(word[0] for word in leaf.split("_")): leaf for leaf in deeper}  # lr: learning_rate
    # A key in another section must be more similar: agent.epsilon is not a misspelling of agent.optimizer.eps.
    for candidates, cutoff in ((beside, 0.6), (deeper, 0.8)):
        match = difflib.get_close_matches(name, candidates, n=1, cutoff=cutoff) or [initials.get(name, "")]
        if match[0] in candidates:
            return f"; did you mean {candidates[match[0]]!r}?"
    return f"; {parent} has {', '.join(beside)}" if parent else ""


def _keys(container: object, prefix: str) -> Iterator[str]:
    if isinstance(container, dict):
        for key, value in container.items():
            yield f"{prefix}{key}"
            yield from _keys(value, f"{prefix}{key}.")
