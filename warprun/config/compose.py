"""Composes a checked Config from overrides, with Hydra. Each error becomes a message of one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TypedDict

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import MISSING, DictConfig, Node, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from warprun.algorithms import AGENTS, agent_names, config_class
from warprun.config.checks import check
from warprun.config.overrides import FREE, GROUPS, ONLY_REFERENCES, is_auto, read, references_only, rewrite
from warprun.config.registry import CONF, conf_folder, conf_packages, options
from warprun.config.saved import leaves
from warprun.config.schema import CONCURRENCY, Config, EnvConfig, OriginConfig, from_dict
from warprun.config.sharing import shareable
from warprun.config.working_folder import WorkingFolder
from warprun.errors import MOST_PRINTED, UserError, nearest, printable, shown, similar
from warprun.kernels.driver import prepare
from warprun.learning.off_policy_settings import IN_SEQUENCES, OffPolicyConfig
from warprun.processes import started
from warprun.renamed import new_name


class _VersionBase(TypedDict, total=False):
    version_base: None


# Hydra 1.4 has no argument `version_base` any more.
VERSION_BASE: _VersionBase = {"version_base": None} if tuple(map(int, hydra.__version__.split(".")[:2])) < (1, 4) else {}

PRIMARY = "warprun"
"""The primary config, conf/warprun.yaml. Its name is not `config`, because another project may have a `conf/config.yaml`."""

NO_AGENT = "~agent"
"""Override that composes a config without an agent."""


class WarprunSearchPath(SearchPathPlugin):
    """Look for config groups in ./conf, then in installed packages, then in warprun itself."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for package in reversed([package for package in conf_packages() if package != CONF]):
            search_path.prepend(package, f"pkg://{package}")
        folder = conf_folder()
        if folder:
            search_path.prepend("working folder", f"{WorkingFolder.scheme()}://{folder}")


def register(overrides: Sequence[str]) -> None:
    """Register the schemas and the search path with Hydra. A second call changes nothing.

    An installed agent is imported, with torch, only if the overrides name it, or an experiment, whose file can choose any agent.
    """
    asked = {name for override in overrides if override.startswith("agent=") for name in override[6:].split(",")}
    if any(override.startswith("experiment=") for override in overrides):
        asked |= set(agent_names())
    store("config_schema", Config)
    for mode, settings in CONCURRENCY.items():
        store(f"{mode}_schema", settings)
    Plugins.instance().register(WarprunSearchPath)
    Plugins.instance().register(WorkingFolder)
    for name in AGENTS:
        store(f"{name}_schema", config_class(name))
    installed = (asked & set(agent_names())) - set(AGENTS)
    for override in overrides:
        if installed and override.startswith("device="):  # its module imports Numba, which reads then whether to simulate CUDA
            prepare(override.removeprefix("device="))
    for name in installed:
        store(f"{name}_schema", config_class(name))


_stored: set[str] = set()


def store(name: str, schema: type) -> None:
    """Give Hydra a schema that config files can name. A second call changes nothing."""
    # Hydra 1.4 warns about a schema that is stored twice.
    if name not in _stored:
        ConfigStore.instance().store(name=name, node=schema)
        _stored.add(name)


def compose(overrides: Sequence[str]) -> Config:
    """Compose a config from `overrides` (key=value) and check it. Raises UserError."""
    config = _explained(overrides)
    check_tuned(overrides)
    check(config)
    return config


def derived(overrides: Sequence[str]) -> list[str]:
    """Return, as overrides, the settings that follow from memory and from the number of processes, of which Hydra does not know.

    Raises UserError.
    """
    config = _explained(overrides)
    is_chosen = config.origin.n_envs not in (None, OriginConfig.MEASURE)
    return [*config.origin.in_sequences, *([f"n_envs={config.n_envs}"] if is_chosen else [])]


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
    _check_references(composed)
    config = OmegaConf.to_object(composed)
    assert isinstance(config, Config)
    tuned = choices.get("tuned")
    written = [_resolved(override, composed) if "${" in override else override for override in overrides]
    measure = OriginConfig.MEASURE if is_auto(overrides) else None
    config.origin = OriginConfig(tuned if tuned in options("tuned") else None, written, measure)
    return config


def change(saved: dict[str, object], overrides: Sequence[str]) -> Config:
    """Return a saved config with `overrides`, for a run that continues. Raises UserError."""
    config = OmegaConf.structured(from_dict(saved))
    try:
        for override in OverridesParser.create().parse_overrides(read(overrides)):
            key = override.key_or_group
            if key in GROUPS:
                raise UserError(f"{key}={override.value()}: a run that continues keeps its {', '.join(GROUPS)}; change single keys")
            OmegaConf.update(config, key, override.value(), force_add=key.startswith(tuple(f"{parent}." for parent in FREE)))
        changed = OmegaConf.to_object(config)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(explain(error)) from error
    assert isinstance(changed, Config)
    changed.origin.overrides += overrides
    return changed


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return `key=value (was value)` for every setting in which two saved configs differ, apart from where and how they were made."""
    then, now = (dict(leaves({key: value for key, value in saved.items() if key not in PLACE})) for saved in (before, after))
    changed = [key for key in {**then, **now} if then.get(key, UNSET) != now.get(key, UNSET)]
    return [printable(f"{key}={now.get(key, UNSET)} (was {then.get(key, UNSET)})", MOST_PRINTED) for key in changed]


UNSET = "unset"
PLACE = ("origin", "run_dir", "output_root", "name")
"""Settings of where a run lies and how it was composed."""


def _check_references(composed: DictConfig) -> None:
    """Raise UserError for an interpolation that calls a function, such as one that reads the environment: a run folder would store it."""
    for key, text in _texts(OmegaConf.to_container(composed, resolve=False), ""):
        if not references_only(text):
            raise UserError(f"{key}={shown(text)}: {ONLY_REFERENCES}")


def _texts(container: object, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(container, str):
        yield key, container
    elif isinstance(container, dict):
        for name, value in container.items():
            yield from _texts(value, f"{key}.{name}" if key else str(name))
    elif isinstance(container, list):
        for value in container:
            yield from _texts(value, key)


def _resolved(override: str, composed: DictConfig) -> str:
    key = rewrite(override).partition("=")[0].lstrip("+")
    return f"{key}={OmegaConf.select(composed, key)}"


def note_on_memory(config: Config) -> str | None:
    """Return a line with the settings that have defaults of their own because policies have memory; None if there are none."""
    named = " ".join(config.origin.in_sequences)
    return f"with memory an update learns from sequences: {named} (defaults of their own, docs/memory.md)" if named else None


def note_on_tuned(config: Config) -> str | None:
    """Return a line that names the tuned settings in use and the overrides that they were not tuned for; None without tuned settings."""
    if config.origin.tuned is None:
        return None
    beside = [setting for setting in config.origin.overrides if setting.startswith(("agent.", "env."))]
    untried = f"; they were not tuned for {' '.join(beside)}" if beside else ""
    return f"settings of tuned/{config.origin.tuned} apply (tuned=none turns them off){untried}"


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


def _explained(overrides: Sequence[str]) -> Config:
    try:
        return _build(overrides)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(explain(error)) from error


def _build(overrides: Sequence[str]) -> Config:
    composed = _compose(read(overrides))
    choices = composed.hydra.runtime.choices
    OmegaConf.set_struct(composed, False)
    del composed["hydra"]
    config = _shared(build(composed, choices, overrides), read(overrides))
    agent = config.agent
    if not isinstance(agent, OffPolicyConfig) or not agent.has_memory():
        return config
    fitted = agent.in_sequences(config.n_envs, _not_given(read(overrides), choices, config.origin.tuned))
    before = dict(leaves({"agent": asdict(agent)}))
    changed = [f"{key}={value}" for key, value in leaves({"agent": asdict(fitted)}) if before.get(key) != value]
    return replace(config, agent=fitted, origin=replace(config.origin, in_sequences=changed))


def _shared(config: Config, overrides: Sequence[str]) -> Config:
    """Return a config whose environments the processes of the run can share; a number that a person gives is left as it is."""
    size = getattr(config.concurrency, "processes", None) or started()
    n_envs = config.n_envs if size <= 1 else shareable(config.n_envs, config.concurrency, size)
    if n_envs == config.n_envs:
        return config
    with _without_defaults("config_schema", ["n_envs"]):
        if not OmegaConf.is_missing(_compose(_untuned(overrides)), "n_envs"):
            return config
    how = f"n_envs={n_envs:,} instead of {config.n_envs:,}, which the {size} processes of this run cannot share"
    return replace(config, n_envs=n_envs, origin=replace(config.origin, n_envs=how))


def _untuned(overrides: Sequence[str]) -> list[str]:
    return [*(override for override in overrides if not override.startswith("tuned=")), "tuned=none"]


def _not_given(overrides: Sequence[str], choices: Mapping[str, str | None], tuned: str | None) -> list[str]:
    """Return the settings of IN_SEQUENCES that no person gives: neither overrides nor a file, tuned settings if they are for memory."""
    chosen = [f"{group}={choices[group]}" for group in ("env", "agent")]
    if tuned and _compose([*chosen, f"tuned={tuned}"]).agent.network.type == "mlp":
        overrides = _untuned(overrides)
    with _without_defaults(f"{choices['agent']}_schema", IN_SEQUENCES):
        agent = _compose(overrides).agent
    return [name for name in IN_SEQUENCES if OmegaConf.is_missing(agent, name)]


@contextmanager
def _without_defaults(schema: str, names: Sequence[str]) -> Iterator[None]:
    """Let Hydra compose with a schema in which settings have no value, so that it shows which are given."""
    kept = ConfigStore.instance().repo[f"{schema}.yaml"]
    empty = OmegaConf.structured(kept.node)
    for name in names:
        empty[name] = MISSING
    ConfigStore.instance().repo[f"{schema}.yaml"] = replace(kept, node=empty)
    try:
        yield
    finally:
        ConfigStore.instance().repo[f"{schema}.yaml"] = kept


def _env(overrides: Sequence[str]) -> EnvConfig:
    composed = _compose(overrides).env
    _check_references(composed)
    env = OmegaConf.to_object(composed)
    assert isinstance(env, EnvConfig)
    return env


def _compose(overrides: Sequence[str]) -> DictConfig:
    register(overrides)
    with hydra.initialize_config_module(CONF, **VERSION_BASE):
        return hydra.compose(PRIMARY, list(overrides), return_hydra_config=True)


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
    match = similar(key, known, most_edits=1)
    if match is not None:
        return f"; did you mean {match!r}?"
    parent, _, name = key.rpartition(".")
    if parent and parent not in known:
        return nearest(key, known)
    below = [path for path in known if not parent or path.startswith(f"{parent}.")]
    beside = {path.rpartition(".")[2]: path for path in below if path.rpartition(".")[0] == parent}
    deeper = {path.rpartition(".")[2]: path for path in reversed(below)}
    initials = {"".join(word[0] for word in leaf.split("_")): leaf for leaf in deeper}  # lr: learning_rate
    # A key in another section must be more similar: agent.epsilon is not a misspelling of agent.optimizer.eps.
    for candidates, cutoff in ((beside, 0.6), (deeper, 0.8)):
        close = difflib.get_close_matches(name, candidates, n=1, cutoff=cutoff) or [initials.get(name, "")]
        if close[0] in candidates:
            return f"; did you mean {candidates[close[0]]!r}?"
    return f"; {parent} has {', '.join(beside)}" if parent else ""


def _keys(container: object, prefix: str) -> Iterator[str]:
    if isinstance(container, dict):
        for key, value in container.items():
            yield f"{prefix}{key}"
            yield from _keys(value, f"{prefix}{key}.")
