"""Composes a checked Config from overrides, with Hydra. Each error becomes a message of one line."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypedDict, cast

import hydra
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from warprun.algorithms import AGENTS, agent_names, config_class
from warprun.algorithms.defaults import may_follow, settings_of
from warprun.config.checks import check
from warprun.config.concurrency import CONCURRENCY
from warprun.config.defaults import with_defaults
from warprun.config.hydra_errors import explained
from warprun.config.kinds import check_shape, know
from warprun.config.overrides import FREE, GROUPS, ONLY_REFERENCES, is_auto, read, references_only, refuse_plus, rewrite
from warprun.config.own_files import read_yaml
from warprun.config.reading import flat_items, texts
from warprun.config.registry import CONF, conf_packages, folders_of, is_shipped, options, own_folders, replacing
from warprun.config.schema import Config, EnvConfig, OriginConfig, from_dict, is_open, written
from warprun.errors import MOST_PRINTED, UserError, nearest, printable, shown, typed
from warprun.kernels.driver import prepare
from warprun.learning.settings.agent import AgentConfig
from warprun.processes import started


class _VersionBase(TypedDict, total=False):
    version_base: None


# Hydra 1.4 has no argument `version_base` any more.
VERSION_BASE: _VersionBase = {"version_base": None} if tuple(map(int, hydra.__version__.split(".")[:2])) < (1, 4) else {}

PRIMARY = "warprun"
"""The primary config, conf/warprun.yaml. Its name is not `config`, because another project may have a `conf/config.yaml`."""

NOT_GIVEN = "${not_given}"
"""Stands in a schema for the value of a setting, to show whether it is given: a reference, which settings of all types can be."""
NO_AGENT = "~agent"
"""Override that composes a config without an agent."""

_alone = threading.RLock()
"""Held by the thread that composes: a process has one Hydra and one store of schemas. A fork waits until none does."""
os.register_at_fork(before=_alone.acquire, after_in_parent=_alone.release, after_in_child=_alone.release)


@contextmanager
def own_hydra() -> Iterator[None]:
    """Let Hydra compose configs of warprun in this context, one thread at a time.

    Also within a program of Hydra, if it calls warprun from the thread that composes its own configs: a process has one Hydra.
    """
    with _alone:
        of_program, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
        try:
            with hydra.initialize_config_module(CONF, **VERSION_BASE):
                yield
        finally:
            GlobalHydra.instance().hydra = of_program


class WarprunSearchPath(SearchPathPlugin):
    """Look for config groups in the folders of the user, then in installed packages, then in warprun itself."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for package in reversed([package for package in conf_packages() if package != CONF]):
            for folder in folders_of(package):
                search_path.prepend(package, f"{OwnFolder.scheme()}://{folder}")
        for folder in reversed(own_folders()):
            search_path.prepend("user", f"{OwnFolder.scheme()}://{folder}")


class OwnFolder(FileConfigSource):
    """The config groups in a folder of the user or of an installed package. Its other files, such as those of another Hydra program, do
    not exist for Hydra."""

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
        file = Path(self.path, name)
        text, config = read_yaml(file, typed(file), name.rpartition("/")[0].replace("/", "."))
        return ConfigResult(self.provider, self.full_path(), config, self._get_header_dict(text[:512]))


def register(overrides: Sequence[str]) -> None:
    """Register the schemas and the search path with Hydra. A second call changes nothing.

    An installed agent is imported, with torch, only if the overrides name it, or an experiment, whose file can choose any agent.
    """
    asked = {name for override in overrides if override.startswith("agent=") for name in override[6:].split(",")}
    if any(override.startswith("experiment=") for override in overrides):
        asked |= set(agent_names())
    store("config_schema", "", Config)
    for mode, settings in CONCURRENCY.items():
        store(f"{mode}_schema", "concurrency", settings)
    Plugins.instance().register(WarprunSearchPath)
    Plugins.instance().register(OwnFolder)
    for name in AGENTS:
        store(f"{name}_schema", "agent", config_class(name))
    installed = (asked & set(agent_names())) - set(AGENTS)
    for override in overrides:
        if installed and override.startswith("device="):  # its module imports Numba, which reads then whether to simulate CUDA
            prepare(override.removeprefix("device="))
    for name in installed:
        store(f"{name}_schema", "agent", config_class(name))


class Schema(ConfigNode):
    """A schema that is made when a config names it, and Hydra copies it: a command needs few of them, and each takes milliseconds."""

    def __init__(self, name: str, settings: object, without: tuple[str, ...] = ()) -> None:
        super().__init__(name, OmegaConf.create(), None, None, None)
        self.settings, self._without = settings, without
        self._others: dict[tuple[str, ...], Schema] = {}

    @cached_property
    def made(self) -> DictConfig:
        """The settings with their types and defaults."""
        made = OmegaConf.structured(self.settings)
        for name in self._without:
            made[name] = NOT_GIVEN
        return made

    def without(self, *names: str) -> Schema:
        """Return the same schema in which some settings are `NOT_GIVEN`, the same one each time."""
        return self._others.setdefault(names, Schema(self.name, self.settings, names))

    def __copy__(self) -> ConfigNode:
        return ConfigNode(self.name, self.made, None, None, None)

    def __deepcopy__(self, memo: object) -> Schema:
        return self  # Hydra copies its whole store for each config, which it never changes


def store(name: str, section: str, settings: object) -> None:
    """Give Hydra a schema for a section, "" for the whole config, that config files can name. A second call changes nothing.

    `settings` is a dataclass, or one with its defaults.
    """
    know(section, settings if isinstance(settings, type) else type(settings))
    ConfigStore.instance().repo.setdefault(f"{name}.yaml", Schema(f"{name}.yaml", settings))


def compose(overrides: Sequence[str]) -> Config:
    """Compose a config from `overrides` (key=value) and check it. Raises UserError."""
    return completed(composed(overrides)[0])


def composed(overrides: Sequence[str]) -> tuple[Config, bool]:
    """Return a config that `completed` takes, and whether a value in it refers to another one, as `${n_envs}`. Raises UserError."""
    config, refers = _built(overrides)
    _check_tuned(overrides)
    return config, refers


def completed(config: Config) -> Config:
    """Return a config with the defaults that follow from the run, and check it. Raises UserError."""
    config = config if is_open(config) else with_defaults(config)
    check(config)
    return config


def derived(overrides: Sequence[str]) -> list[str]:
    """Return, as overrides, the settings that follow from the run, of which Hydra does not know. Raises UserError."""
    config, _ = _built(overrides)
    is_chosen = config.origin.n_envs not in (None, OriginConfig.MEASURE)
    return [*with_defaults(config).origin.derived, *([f"n_envs={config.n_envs}"] if is_chosen else [])]


def compose_environment(name: str) -> EnvConfig:
    """Return the config of an environment as Hydra composes it; `environments.environment_config` is faster. Raises UserError."""
    with explained():
        composed = _compose([f"env={name}", "tuned=none", NO_AGENT]).env
        _check_references(composed)
        env = OmegaConf.to_object(composed)
    assert isinstance(env, EnvConfig)
    return env


def change(saved: dict[str, object], overrides: Sequence[str]) -> Config:
    """Return a saved config with `overrides`, for a run that continues. Raises UserError."""
    before = from_dict(saved)
    know("agent", type(before.agent))
    config = OmegaConf.structured(before)
    with explained():
        for override in OverridesParser.create().parse_overrides(read(overrides)):
            key = override.key_or_group
            if override.is_delete():
                raise UserError(f"{override.input_line}: a run that continues keeps its keys; change their values")
            if key in GROUPS:
                raise UserError(f"{key}={override.value()}: a run that continues keeps its {', '.join(GROUPS)}; change single keys")
            OmegaConf.update(config, key, override.value(), force_add=key.startswith(tuple(f"{parent}." for parent in FREE)))
        changed = OmegaConf.to_object(config)
    assert isinstance(changed, Config)
    check_shape(changed)
    if changed.staggered != before.staggered:
        raise UserError(f"{written('staggered', changed.staggered)}: a run that continues keeps it, its episodes have begun")
    changed.origin.overrides += overrides
    given = {override.lstrip("+").partition("=")[0] for override in overrides}
    changed.origin.derived = [each for each in changed.origin.derived if each.partition("=")[0] not in given]
    return changed


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return `key=value (was value)` for every setting in which two saved configs differ, apart from where and how they were made."""
    then, now = (dict(flat_items({key: value for key, value in saved.items() if key not in PLACE})) for saved in (before, after))
    changed = [key for key in {**then, **now} if then.get(key, UNSET) != now.get(key, UNSET)]
    return [printable(f"{key}={now.get(key, UNSET)} (was {then.get(key, UNSET)})", MOST_PRINTED) for key in changed]


UNSET = "unset"
PLACE = ("origin", "run_dir", "output_root", "name")
"""Settings of where a run lies and how it was composed."""


def _check_references(composed: DictConfig) -> bool:
    """Return whether a value refers to another one. Raise UserError for an interpolation that calls a function, such as one that reads the
    environment: a run folder would store it."""
    refers = False
    for key, text in texts(OmegaConf.to_container(composed, resolve=False), ""):
        refers = refers or "${" in text
        if not references_only(text):
            raise UserError(f"{key}={shown(text)}: {ONLY_REFERENCES}")
    return refers


def _resolved(override: str, composed: DictConfig) -> str:
    key = rewrite(override).partition("=")[0].lstrip("+")
    return f"{key}={OmegaConf.select(composed, key)}"


def note_on_defaults(config: Config) -> str | None:
    """Return a line with the settings that follow from the run, because nobody has given them; None if there are none."""
    found = " ".join(config.origin.derived)
    return f"defaults for this run: {found} (docs/defaults.md)" if found else None


def note_on_files(config: Config) -> str | None:
    """Return a line that names the files which stand in the place of warprun's own; None if there are none."""
    found = config.origin.replacing
    return f"in the place of warprun's own of the same name: {' '.join(found)}" if found else None


def note_on_tuned(config: Config) -> str | None:
    """Return a line that names the tuned settings in use and the overrides that they were not tuned for; None without tuned settings."""
    if config.origin.tuned is None:
        return None
    beside = [setting for setting in config.origin.overrides if setting.startswith(("agent.", "env."))]
    if is_shipped("tuned", config.origin.tuned):
        beside += config.origin.replacing
    untried = f"; they were not tuned for {' '.join(beside)}" if beside else ""
    return f"settings of tuned/{config.origin.tuned} apply (tuned=none turns them off){untried}"


def _built(overrides: Sequence[str]) -> tuple[Config, bool]:
    """Return the config that Hydra composes from `overrides`, with what follows from the number of processes, and whether a value refers to
    another one."""
    register(overrides)
    given = read(overrides)
    with _alone, explained():  # all of it: schemas lack some defaults for a while
        composed, unset = _compose_agent(given)
        refuse_plus(overrides)  # after a key that does not exist
        choices = composed.hydra.runtime.choices
        OmegaConf.set_struct(composed, False)
        del composed["hydra"]
        refers = _check_references(composed)
        config = OmegaConf.to_object(composed)
        assert isinstance(config, Config)
        check_shape(config)
        tuned = choices["tuned"] if choices.get("tuned") in options("tuned") else None
        written = [_resolved(override, composed) if "${" in override else override for override in overrides]
        files = [typed(file) for file in replacing({group: name for group, name in choices.items() if group in GROUPS})]
        measured = OriginConfig.MEASURE if is_auto(overrides) else None
        config.origin = OriginConfig(tuned, written, measured, replacing=files)
        config = _shared(config, given)
        return replace(config, origin=replace(config.origin, derived=_free(config, unset, given, choices))), refers


def _shared(config: Config, overrides: Sequence[str]) -> Config:
    """Return a config whose environments the processes of the run can share; a number that a person gives is left as it is."""
    size = config.concurrency.wanted or started()
    n_envs = config.n_envs if size <= 1 else config.concurrency.shareable(config.n_envs, size)
    if n_envs == config.n_envs:
        return config
    with _without_defaults({"config_schema": ["n_envs"]}):
        if _as_written(_compose(_untuned(overrides)))["n_envs"] != NOT_GIVEN:
            return config
    how = f"n_envs={n_envs:,} instead of {config.n_envs:,}, which the {size} processes of this run cannot share"
    return replace(config, n_envs=n_envs, origin=replace(config.origin, n_envs=how))


def _untuned(overrides: Sequence[str]) -> list[str]:
    return [*(override for override in overrides if not override.startswith("tuned=")), "tuned=none"]


def _free(config: Config, unset: Sequence[str], overrides: Sequence[str], choices: Mapping[str, str]) -> list[str]:
    """Return, as overrides, the settings of the agent that nobody has given, of those that may follow from the run.

    `unset` are those that neither `overrides` nor files give.
    """
    agent, tuned = config.agent, config.origin.tuned
    names = settings_of(agent, stated=tuned is not None or choices.get("experiment") is not None)
    if not names:
        return []
    if tuned and _compose([*(f"{group}={choices[group]}" for group in ("env", "agent")), f"tuned={tuned}"]).agent.network.type == "mlp":
        _, unset = _compose_agent(_untuned(overrides))  # tuned settings count only if they are for memory
    return [written(name, getattr(agent, name)) for name in names if name in unset]


def _compose_agent(overrides: Sequence[str]) -> tuple[DictConfig, list[str]]:
    """Return the config that Hydra composes from `overrides`, and which settings of its agent that may follow from the run nobody gives."""
    register(overrides)
    names = {f"{name}_schema": may_follow(name, settings) for name, settings in _agents().items()}
    with _without_defaults({schema: each for schema, each in names.items() if each}):
        composed = _compose(overrides)
    agent, kind = composed.agent, OmegaConf.get_type(composed.agent)
    unset = [name for name, value in _as_written(agent).items() if value == NOT_GIVEN]
    for name in unset:
        agent[name] = getattr(kind, name)
    return composed, unset


def _as_written(config: DictConfig) -> dict[str, object]:
    """Return a config with references as texts."""
    return cast("dict[str, object]", OmegaConf.to_container(config, resolve=False))


def _agents() -> dict[str, type[AgentConfig]]:
    """Return the settings of the agents that Hydra has schemas of, by name."""
    found = {file.removesuffix("_schema.yaml"): getattr(schema, "settings", None) for file, schema in ConfigStore.instance().repo.items()}
    return {name: each for name, each in found.items() if isinstance(each, type) and issubclass(each, AgentConfig)}


@contextmanager
def _without_defaults(names: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Let Hydra compose with schemas in which settings, by schema, are `NOT_GIVEN`, so that it shows which are given."""
    repo = ConfigStore.instance().repo
    kept = {f"{schema}.yaml": repo[f"{schema}.yaml"] for schema in names}
    repo.update({f"{schema}.yaml": kept[f"{schema}.yaml"].without(*without) for schema, without in names.items()})
    try:
        yield
    finally:
        repo.update(kept)


def _compose(overrides: Sequence[str]) -> DictConfig:
    register(overrides)
    with own_hydra():
        return hydra.compose(PRIMARY, list(overrides), return_hydra_config=True)


def _check_tuned(overrides: Sequence[str]) -> None:
    """Raise UserError if `overrides` name tuned settings that do not exist."""
    # Tuned settings are optional, so Hydra ignores a misspelt name.
    for override in overrides:
        key, _, name = override.partition("=")
        if key == "tuned" and name not in ("none", *options("tuned")):
            known = ["none", *options("tuned")]
            raise UserError(f"unknown tuned settings {name!r}{nearest(name, known)} (there are: {', '.join(known)})")
