"""Former names of keys."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

RENAMED = {
    "log.every_s": "log.every=1s, with a unit",
    "checkpoint.every_minutes": "checkpoint.every=5min, with a unit",
    "env.vary": "env.randomize",
    "agent.gradient_steps": "agent.utd_ratio",
    "agent.warmup": "agent.learning_starts",
    "agent.smoothing_std": "agent.target_policy_noise",
    "agent.smoothing_clip": "agent.target_noise_clip",
    "agent.target_every": "agent.target_update_interval",
    "agent.target_tau": "agent.tau",
    "agent.epsilon": "agent.epsilon_start",
    "agent.epsilon_fraction": "agent.exploration_fraction",
    "agent.network.name": "agent.network.module",
    "agent.network.options": "agent.network.kwargs",
    "engine.cuda_graph": "engine.capture",
    "origin.in_sequences": "origin.derived",
}
"""Former keys, and what to write instead."""
FORMER_DEFAULTS = {"network": {"name": "mlp", "options": {}}}
"""Defaults of former settings of an agent that a saved config may have, and that mean nothing today."""


def new_name(key: str, known: Container[str]) -> str | None:
    """Return what to write instead of a former `key`; None for other keys, or if `known`, the names in its section, lacks the new one."""
    new = RENAMED.get(key)
    return new if new and new.partition("=")[0].rpartition(".")[2] in known else None


def with_new_keys(saved: Mapping[str, object], schema: Mapping[str, object]) -> dict[str, object]:
    """Return a saved config with its former keys, those that `schema` lacks, under the names of today."""
    found: dict[str, object] = dict(saved)
    for key in RENAMED:
        section, _, name = key.partition(".")
        given, known = found.get(section), schema.get(section)
        if not isinstance(given, Mapping) or not isinstance(known, Mapping) or name in known or new_name(key, known) is None:
            continue
        found[section] = dict(_renamed(given, key, name))
    return {name: _without_former(value) if name == "agent" else value for name, value in found.items()}


def _without_former(agent: object) -> object:
    """Return the settings of an agent, and of the groups in it, without FORMER_DEFAULTS."""
    if not isinstance(agent, Mapping):
        return agent
    found = {name: _without_former(value) for name, value in agent.items()}
    for section, former in FORMER_DEFAULTS.items():
        given = found.get(section)
        if isinstance(given, dict):
            found[section] = {name: value for name, value in given.items() if name not in former or value != former[name]}
    return found


def _renamed(given: Mapping[str, object], key: str, name: str) -> Iterator[tuple[str, object]]:
    """Yield the entries of a section, and of the groups in it, with the setting `name` under its new name."""
    new = RENAMED[key].partition("=")[0].rpartition(".")[2]
    unit = {"log.every_s": "s", "checkpoint.every_minutes": "min"}.get(key)
    for each, value in given.items():
        if each == name:
            yield new, value if unit is None else f"{value:g}{unit}" if isinstance(value, int | float) else "never"
        elif each == "groups" and isinstance(value, Mapping):
            yield each, {group: dict(_renamed(own, key, name)) if isinstance(own, Mapping) else own for group, own in value.items()}
        else:
            yield each, value
